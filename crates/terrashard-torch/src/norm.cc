// Layer normalisation. On NVIDIA GPUs by kernels of our own, where a row's length suits them: LibTorch's give each row a
// block of threads, which rows of 64 to 512 elements leave idle, and walk over the gradient three times. Elsewhere LibTorch's.

#include "norm.h"

#include "compiled.h"
#include "norm_kernels.h"
#include "views.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>

namespace terrashard {
namespace {

using at::Tensor;

// LibTorch keeps mean and deviation of 16 bits in 16 bits on the CPU, which weights' gradients feel: there it gets 32.
Tensor for_norm(const Tensor& x) {
  return x.is_cpu() && at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

// Threads of a block.
constexpr int64_t kThreads = 128;
// Elements of a row that one thread takes at most, so that they stay in its registers.
constexpr int64_t kElements = 48;

// How rows are cut among threads.
struct Cut {
  int64_t threads, vectors, elements;
  int64_t rows_of_block() const { return kThreads / threads; }
};

// Nothing if rows of so many elements suit the kernels badly.
std::optional<Cut> cut(int64_t columns, int64_t bytes) {
  const auto width = kVectorBytes / bytes;
  if (columns == 0 || columns % width != 0) return {};
  const auto vectors = columns / width;
  int64_t threads = 1;
  while (threads < 32 && vectors % (threads * 2) == 0) threads *= 2;
  Cut cut{threads, vectors / threads, vectors / threads * width};
  if (cut.elements > kElements) return {};
  return cut;
}

// The program for rows like those of `x`. Null where LibTorch's kernels have to do.
const Program* program(const Tensor& x, const std::optional<Cut>& cut) {
  if (x.numel() == 0 || !cut) return nullptr;
  return Program::of(
      kNormKernels, x,
      {{"COLUMNS", x.size(-1)}, {"ROW_THREADS", cut->threads}, {"VECTORS", cut->vectors}, {"THREADS", kThreads}});
}

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Norm normalised(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  const c10::OptionalDeviceGuard guard(x.device());
  const auto how = cut(x.size(-1), x.element_size());
  const auto* kernels = program(x, how);
  const bool same = weight.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type();
  if (kernels == nullptr || !same || !is_vectors(x) || !is_vectors(weight) || !is_vectors(bias)) {
    auto [y, mean, inverse] =
        at::native_layer_norm(for_norm(x), weight.sizes(), for_norm(weight), for_norm(bias), epsilon);
    return {y.to(x.scalar_type()), mean, inverse};
  }
  int64_t rows = x.numel() / x.size(-1);
  auto y = fresh_like(x);
  Sizes sizes(x.sizes());
  sizes.back() = 1;
  const auto both = fresh({2, rows}, x, at::kFloat);
  const auto mean = viewed(both, sizes, strides_of(sizes), 0), inverse = viewed(both, sizes, strides_of(sizes), rows);
  const void *in = x.const_data_ptr(), *w = weight.const_data_ptr(), *b = bias.const_data_ptr();
  void *out = y.mutable_data_ptr(), *m = mean.mutable_data_ptr(), *s = inverse.mutable_data_ptr();
  float eps = static_cast<float>(epsilon);
  void* arguments[] = {&in, &w, &b, &out, &m, &s, &rows, &eps};
  const auto blocks = std::min(ceiling(rows, how->rows_of_block()), kernels->processors() * 16);
  kernels->launch("norm_forward", static_cast<unsigned>(blocks), kThreads, arguments);
  return {y, mean, inverse};
}

NormGradients normalised_backward(const Tensor& gradient, const Tensor& x, const Norm& norm, const Tensor& weight,
                                  const Tensor& bias, std::array<bool, 3> wanted, const Tensor* beside,
                                  const NormGradients& into) {
  const c10::OptionalDeviceGuard guard(x.device());
  const auto how = cut(x.size(-1), x.element_size());
  const auto* kernels = program(x, how);
  const auto type = x.scalar_type();
  const auto fits = [&](const Tensor& t) { return t.scalar_type() == type && is_vectors(t); };
  const bool floats = norm.mean.scalar_type() == at::kFloat;
  if (kernels == nullptr || !floats || !fits(x) || !fits(weight) || !fits(gradient) || (beside && !fits(*beside))) {
    auto [gx, gw, gb] = at::native_layer_norm_backward(for_norm(gradient), for_norm(x), weight.sizes(), norm.mean,
                                                       norm.inverse, for_norm(weight), for_norm(bias), wanted);
    const auto back = [&](const Tensor& t) { return t.defined() ? t.to(type) : t; };
    NormGradients all{back(gx), back(gw), back(gb)};
    if (all.x.defined() && beside) all.x.add_(*beside);
    return all;
  }
  const auto columns = x.size(-1);
  int64_t rows = x.numel() / columns;
  // Each block keeps sums of its own for weight and bias, so there are not many.
  const auto per_processor = how->elements > 16 ? 3 : 8;
  int64_t blocks = std::min(ceiling(rows, how->rows_of_block()), kernels->processors() * per_processor);
  NormGradients all;
  Tensor sums;
  if (wanted[0]) all.x = fresh(x.sizes(), x, type, into.x);
  if (wanted[1] || wanted[2]) sums = fresh({blocks, 2, columns}, x, at::kFloat);
  const void *g = gradient.const_data_ptr(), *in = x.const_data_ptr(), *w = weight.const_data_ptr();
  const void *m = norm.mean.const_data_ptr(), *s = norm.inverse.const_data_ptr();
  const void* add = beside ? beside->const_data_ptr() : nullptr;
  void *gx = wanted[0] ? all.x.mutable_data_ptr() : nullptr, *parts = sums.defined() ? sums.mutable_data_ptr() : nullptr;
  void* arguments[] = {&g, &in, &w, &m, &s, &add, &gx, &parts, &rows};
  kernels->launch("norm_backward", static_cast<unsigned>(blocks), kThreads, arguments);
  if (sums.defined()) {
    if (wanted[1]) all.weight = fresh(weight.sizes(), x, type, into.weight);
    if (wanted[2]) all.bias = fresh(bias.sizes(), x, bias.scalar_type(), into.bias);
    void *gw = wanted[1] ? all.weight.mutable_data_ptr() : nullptr, *gb = wanted[2] ? all.bias.mutable_data_ptr() : nullptr;
    void* finish[] = {&parts, &gw, &gb, &blocks};
    kernels->launch("norm_finish", static_cast<unsigned>(ceiling(2 * columns, 32)), 256, finish);
  }
  return all;
}

}  // namespace terrashard
