// Bilinear enlargement of maps, corners not aligned. On NVIDIA GPUs, for maps whose channels lie side by side, by kernels that
// move 16 bytes at a time and add up gradients in a fixed order; elsewhere by LibTorch's.

#include "compiled.h"
#include "guarded.h"
#include "resize_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <c10/core/DeviceGuard.h>

using at::Tensor;

namespace {

constexpr int64_t kThreads = 256;

// The program for maps like `x`, [N, C, h, w], that are to be or were enlarged; null where LibTorch has to do.
const terrashard::Program* program(const Tensor& x, const Tensor& pixels, int64_t h, int64_t w, int64_t height, int64_t width) {
  const auto elements = terrashard::kVectorBytes / x.element_size();
  if (x.numel() == 0 || x.size(1) % elements != 0 || h > height || w > width) return nullptr;
  return terrashard::is_vectors(pixels) ? terrashard::Program::of(terrashard::kResizeKernels, x) : nullptr;
}

// `count`: pixels that are written.
void launch(const terrashard::Program& kernels, const char* name, const Tensor& in, Tensor& out, int64_t h, int64_t w,
            int64_t height, int64_t width) {
  int64_t vectors = in.size(3) / (terrashard::kVectorBytes / in.element_size());
  int64_t count = out.numel() / out.size(3) * vectors;
  float scale_y = static_cast<float>(h) / static_cast<float>(height);
  float scale_x = static_cast<float>(w) / static_cast<float>(width);
  const void* from = in.const_data_ptr();
  void* to = out.mutable_data_ptr();
  void* arguments[] = {&from, &to, &count, &vectors, &h, &w, &height, &width, &scale_y, &scale_x};
  kernels.launch(name, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, arguments);
}

}  // namespace

extern "C" {

// x: [N, C, h, w]. out: [N, C, height, width].
int terrashard_resize(char** message, const Tensor* x, int64_t height, int64_t width, Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(x->device());
    const auto h = x->size(2), w = x->size(3);
    const auto pixels = x->permute({0, 2, 3, 1});
    const auto* kernels = program(*x, pixels, h, w, height, width);
    if (kernels == nullptr) {
      out[0] = terrashard::given(at::upsample_bilinear2d(*x, {height, width}, false));
      return;
    }
    auto large = at::empty({x->size(0), height, width, x->size(1)}, x->options());
    launch(*kernels, "resize", pixels, large, h, w, height, width);
    out[0] = terrashard::given(large.permute({0, 3, 1, 2}));
  });
}

// gradient: [N, C, height, width]. out: [N, C, h, w].
int terrashard_resize_backward(char** message, const Tensor* gradient, int64_t h, int64_t w, Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(gradient->device());
    const auto n = gradient->size(0), c = gradient->size(1), height = gradient->size(2), width = gradient->size(3);
    const auto pixels = gradient->permute({0, 2, 3, 1});
    const auto* kernels = program(*gradient, pixels, h, w, height, width);
    if (kernels == nullptr) {
      out[0] = terrashard::given(at::upsample_bilinear2d_backward(*gradient, {height, width}, {n, c, h, w}, false));
      return;
    }
    auto small = at::empty({n, h, w, c}, gradient->options());
    launch(*kernels, "resize_backward", pixels, small, h, w, height, width);
    out[0] = terrashard::given(small.permute({0, 3, 1, 2}));
  });
}

}  // extern "C"
