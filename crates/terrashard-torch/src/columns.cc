// The nine shifted copies of maps that a 3 x 3 convolution multiplies, and their sum back. On NVIDIA GPUs by kernels that move
// 16 bytes at a time, where the width of the maps allows it; LibTorch's, which serve elsewhere, reach a tenth of a GPU's bandwidth.

#include "columns_kernels.h"
#include "compiled.h"
#include "guarded.h"

#include <ATen/ops/col2im.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/im2col.h>
#include <c10/core/DeviceGuard.h>

using at::Tensor;

namespace {

constexpr int64_t kThreads = 256;

const terrashard::Program* program(const Tensor& like, int64_t width) {
  const auto elements = terrashard::kVectorBytes / like.element_size();
  if (like.numel() == 0 || width % elements != 0) return nullptr;
  return terrashard::Program::of(terrashard::kColumnsKernels, like);
}

// Runs a kernel with a thread for each 16 bytes of `planes` maps.
void launch(const terrashard::Program& kernels, const char* name, const void* in, void* out, int64_t planes, int64_t height,
            int64_t width, int64_t bytes) {
  int64_t vectors = width / (terrashard::kVectorBytes / bytes);
  int64_t count = planes * height * vectors;
  void* arguments[] = {&in, &out, &count, &height, &vectors};
  kernels.launch(name, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, arguments);
}

}  // namespace

extern "C" {

// x: [n, c, h, w]. out: [n, 9 c, h w], as LibTorch's im2col for kernels of 3 x 3 with a border of nought.
int terrashard_columns(char** message, const Tensor* x, Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(x->device());
    const auto n = x->size(0), c = x->size(1), h = x->size(2), w = x->size(3);
    const auto* kernels = program(*x, w);
    if (kernels == nullptr || !terrashard::is_vectors(*x)) {
      out[0] = terrashard::given(at::im2col(*x, {3, 3}, {1, 1}, {1, 1}, {1, 1}));
      return;
    }
    auto columns = at::empty({n, 9 * c, h * w}, x->options());
    launch(*kernels, "columns", x->const_data_ptr(), columns.mutable_data_ptr(), n * c, h, w, x->element_size());
    out[0] = terrashard::given(std::move(columns));
  });
}

// The opposite: columns [n, 9 c, h w] added up where they came from, [n, c, h, w].
int terrashard_columns_backward(char** message, const Tensor* columns, int64_t height, int64_t width, Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(columns->device());
    const auto* kernels = program(*columns, width);
    if (kernels == nullptr || !terrashard::is_vectors(*columns)) {
      out[0] = terrashard::given(at::col2im(*columns, {height, width}, {3, 3}, {1, 1}, {1, 1}, {1, 1}));
      return;
    }
    const auto n = columns->size(0), c = columns->size(1) / 9;
    auto sum = at::empty({n, c, height, width}, columns->options());
    launch(*kernels, "columns_backward", columns->const_data_ptr(), sum.mutable_data_ptr(), n * c, height, width,
           columns->element_size());
    out[0] = terrashard::given(std::move(sum));
  });
}

}  // extern "C"
