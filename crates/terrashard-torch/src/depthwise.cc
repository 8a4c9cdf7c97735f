// cuDNN's kernels for channels last reach a third of the memory's bandwidth and leave the bias to another kernel.

#include "depthwise.h"

#include "compiled.h"
#include "depthwise_kernels.h"
#include "views.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

namespace terrashard {
namespace {

using at::Tensor;

// Rows of the map that one thread takes.
constexpr int64_t kRows = 8;
// Threads of a block.
constexpr int64_t kThreads = 128;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t vectors_of(const Tensor& x) { return x.size(-1) / (kVectorBytes / x.element_size()); }

// Neighbouring threads that take neighbouring channels, a power of two within a warp.
int64_t lanes_of(const Tensor& x) {
  int64_t lanes = 1;
  while (lanes < 32 && vectors_of(x) % (lanes * 2) == 0) lanes *= 2;
  return lanes;
}

const Program* program(const Tensor& x, const Tensor& weight) {
  const auto suits = x.numel() > 0 && x.size(-1) % (kVectorBytes / x.element_size()) == 0;
  if (!x.is_cuda() || !suits || weight.scalar_type() != x.scalar_type() || !is_vectors(x)) return nullptr;
  return Program::of(kDepthwiseKernels, x, {{"ROWS", kRows}, {"THREADS", kThreads}, {"LANES", lanes_of(x)}});
}

// The same where kernels can read 16 bytes at once: a slice of a larger buffer may begin anywhere.
Tensor aligned(const Tensor& x) { return is_vectors(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

void convolve(const Program& kernels, const Tensor& x, const Tensor& weight, const Tensor* bias, Tensor& y,
              Tensor* activated, int64_t height, int64_t width, int flipped) {
  int64_t vectors = vectors_of(x);
  int64_t count = x.size(0) * ceiling(height, kRows) * width * vectors;
  const auto taps = aligned(weight);
  const void *in = x.const_data_ptr(), *w = taps.const_data_ptr();
  const void* b = bias ? bias->const_data_ptr() : nullptr;
  void *out = y.mutable_data_ptr(), *a = activated ? activated->mutable_data_ptr() : nullptr;
  void* arguments[] = {&in, &w, &b, &out, &a, &count, &height, &width, &vectors, &flipped};
  kernels.launch("depthwise", static_cast<unsigned>(ceiling(count, kThreads)), kThreads, arguments);
}

}  // namespace

std::optional<Depthwise> depthwise(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t height,
                                   int64_t width, bool activated, const Tensor& into) {
  const c10::OptionalDeviceGuard guard(x.device());
  const auto* kernels = program(x, weight);
  if (kernels == nullptr || bias.scalar_type() != x.scalar_type()) return {};
  const auto own = aligned(bias);
  Depthwise result{fresh(x.sizes(), x, x.scalar_type(), into), activated ? fresh_like(x) : Tensor()};
  convolve(*kernels, x, weight, &own, result.convolved, activated ? &result.activated : nullptr, height, width,
           0);
  return result;
}

std::optional<DepthwiseGradients> depthwise_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                     int64_t height, int64_t width, const Tensor& into_weight,
                                                     const Tensor& into_bias) {
  const c10::OptionalDeviceGuard guard(x.device());
  const auto* kernels = program(x, weight);
  if (kernels == nullptr || gradient.scalar_type() != x.scalar_type() || !is_vectors(gradient)) return {};
  const auto type = weight.scalar_type();
  DepthwiseGradients all{fresh_like(x), fresh(weight.sizes(), weight, type, into_weight),
                         fresh({weight.size(0)}, weight, type, into_bias)};
  convolve(*kernels, gradient, weight, nullptr, all.x, nullptr, height, width, 1);
  int64_t vectors = vectors_of(x), channels = x.size(-1), rows = x.size(0) * height;
  int64_t groups = vectors / lanes_of(x);
  const auto subs = kThreads / lanes_of(x);
  int64_t parts = std::max<int64_t>(1, std::min(ceiling(rows, subs), kernels->processors() * 6 / groups));
  auto sums = fresh({parts, 10, channels}, x, at::kFloat);
  const void *g = gradient.const_data_ptr(), *in = x.const_data_ptr();
  void* s = sums.mutable_data_ptr();
  void* arguments[] = {&g, &in, &s, &rows, &height, &width, &vectors, &groups};
  kernels->launch("depthwise_weight", static_cast<unsigned>(parts * groups), kThreads, arguments);
  void *gw = all.weight.mutable_data_ptr(), *gb = all.bias.mutable_data_ptr();
  void* finish[] = {&s, &gw, &gb, &parts, &channels};
  kernels->launch("depthwise_finish", static_cast<unsigned>(ceiling(10 * channels, 32)), 256, finish);
  return all;
}

}  // namespace terrashard
