// Losses of enlarged maps in one pass over their targets, on NVIDIA GPUs alone: composed of LibTorch's kernels they read and
// write temporaries of the map's size a dozen times.

#include "compiled.h"
#include "guarded.h"
#include "loss_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

using at::Tensor;

namespace {

constexpr int64_t kThreads = 256;
// Blocks that share a multiprocessor.
constexpr int64_t kBlocks = 8;
// Pixels along one side beyond which the kernel's loops, which are written out, are too long.
constexpr int64_t kLargest = 16;

// own: what the loss has of its own.
const terrashard::Program* program(const Tensor& map, const Tensor& target, int64_t factor, terrashard::Define own) {
  const bool suits = map.is_cuda() && map.numel() > 0 && map.is_contiguous() && target.is_contiguous() && target.device() == map.device();
  if (!suits || factor > kLargest) return nullptr;
  return terrashard::Program::of(terrashard::kLossKernels, map,
                                 {own, {"FACTOR", factor}, {"THREADS", kThreads}});
}

unsigned blocks(const terrashard::Program& kernels, int64_t count) {
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kernels.processors() * kBlocks));
}

}  // namespace

extern "C" {

// What digital numbers stand for: (number + offset) * scale.
struct Coding {
  float offset, scale;
  unsigned missing;
};

// map: [n, kinds kinds, h, w], labels: [n, factor h, factor w] of bytes. loss, a, b: as LOSS in `loss_kernels.h` says. out: two sums,
// and the slope if it is asked for; null both where there is no kernel.
int terrashard_mask_loss(char** message, const Tensor* map, const Tensor* labels, int64_t factor, int64_t loss, double first,
                         double second, int slopes, Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(map->device());
    if (labels->scalar_type() != at::kByte) return;
    const auto* kernels = program(*map, *labels, factor, {"LOSS", loss});
    if (kernels == nullptr) return;
    int64_t h = map->size(2), w = map->size(3), count = map->size(0) * h * w;
    auto slope = slopes != 0 ? at::empty_like(*map) : Tensor();
    const auto number = blocks(*kernels, count);
    auto sums = at::empty({number, 2}, map->options().dtype(at::kDouble));
    const void *in = map->const_data_ptr(), *l = labels->const_data_ptr();
    void *s = slopes != 0 ? slope.mutable_data_ptr() : nullptr, *d = sums.mutable_data_ptr();
    float a = static_cast<float>(first), b = static_cast<float>(second);
    void* arguments[] = {&in, &l, &s, &d, &count, &h, &w, &a, &b};
    kernels->launch("mask_loss", number, kThreads, arguments);
    out[0] = terrashard::given(sums.sum(0));
    if (slopes != 0) out[1] = terrashard::given(std::move(slope));
  });
}

// map: [n, c kinds kinds, h, w], target: [n, c, factor h, factor w] of 32-bit floats or, with a coding, of 16-bit numbers. out: as above, one
// sum.
int terrashard_l1_loss(char** message, const Tensor* map, const Tensor* target, const Coding* numbers, int64_t factor, int slopes,
                       Tensor** out) {
  return terrashard::guarded(message, [&] {
    const c10::OptionalDeviceGuard guard(map->device());
    const auto coding = numbers != nullptr ? *numbers : Coding{0, 1, 0};
    if (target->scalar_type() != (numbers != nullptr ? at::kShort : at::kFloat)) return;
    const auto* kernels = program(*map, *target, factor, {"NUMBERS", numbers != nullptr ? 1 : 0});
    if (kernels == nullptr) return;
    int64_t h = map->size(2), w = map->size(3), count = target->size(0) * target->size(1) * h * w;
    auto slope = slopes != 0 ? at::empty_like(*map) : Tensor();
    const auto number = blocks(*kernels, count);
    auto sums = at::empty({number}, map->options().dtype(at::kDouble));
    const void *in = map->const_data_ptr(), *t = target->const_data_ptr();
    void *s = slopes != 0 ? slope.mutable_data_ptr() : nullptr, *d = sums.mutable_data_ptr();
    float offset = coding.offset, scale = coding.scale;
    unsigned missing = coding.missing;
    void* arguments[] = {&in, &t, &s, &d, &count, &h, &w, &offset, &scale, &missing};
    kernels->launch("l1_loss", number, kThreads, arguments);
    out[0] = terrashard::given(sums.sum().view({1}));
    if (slopes != 0) out[1] = terrashard::given(std::move(slope));
  });
}

}  // extern "C"
