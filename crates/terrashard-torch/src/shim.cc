// What LibTorch computes and its Rust bindings leave out, as C functions for `src/shim.rs`.
//
// Every function returns 0, or 1 with the exception's text in `message`, which the caller frees with
// `terrashard_free_text`. Tensors in `out` belong to the caller, null where there is none; they do so after an error, too.
// Built against LibTorch's own headers alone: `at::accelerator` needs none of CUDA.

#include "graph.h"
#include "guarded.h"

#include "attention.h"
#include "norm.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/full.h>
#include <torch/headeronly/version.h>

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/env.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iomanip>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

using terrashard::given;
using terrashard::guarded;
using terrashard::value_or_undefined;

namespace {

// What one thread's calls take of the CPU's memory. LibTorch's allocator reports to it as it does to its profiler.
struct CpuBytes : c10::MemoryReportingInfoBase {
  int64_t now = 0;
  int64_t peak = 0;

  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    now += size;
    peak = std::max(peak, now);
  }

  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

extern "C" {

void terrashard_free_text(char* text) { free(text); }

const char* terrashard_torch_version() { return TORCH_VERSION; }

// out: gradients of x, weight and bias.
int terrashard_conv2d_backward(char** message, const at::Tensor* gradient, const at::Tensor* x, const at::Tensor* weight,
                               int64_t stride, int64_t padding, int64_t groups, const bool* wanted, at::Tensor** out) {
  return guarded(message, [&] {
    std::array<int64_t, 1> bias{weight->size(0)};
    auto [gx, gw, gb] = at::convolution_backward(
        *gradient, *x, *weight, at::IntArrayRef(bias), {stride, stride}, {padding, padding}, {1, 1}, false, {0, 0},
        groups, {wanted[0], wanted[1], wanted[2]});
    out[0] = given(std::move(gx));
    out[1] = given(std::move(gw));
    out[2] = given(std::move(gb));
  });
}

// out: the result, and for each row the mean and the inverse deviation.
int terrashard_layer_norm(char** message, const at::Tensor* x, const at::Tensor* weight, const at::Tensor* bias,
                          double epsilon, at::Tensor** out) {
  return guarded(message, [&] {
    auto norm = terrashard::normalised(*x, *weight, *bias, epsilon);
    out[0] = given(std::move(norm.y));
    out[1] = given(std::move(norm.mean));
    out[2] = given(std::move(norm.inverse));
  });
}

// out: gradients of x, weight and bias.
int terrashard_layer_norm_backward(char** message, const at::Tensor* gradient, const at::Tensor* x,
                                   const at::Tensor* mean, const at::Tensor* inverse, const at::Tensor* weight,
                                   const bool* wanted, at::Tensor** out) {
  return guarded(message, [&] {
    // The bias has the weight's shape, and its values do not matter.
    auto all = terrashard::normalised_backward(*gradient, *x, {{}, *mean, *inverse}, *weight, *weight,
                                               {wanted[0], wanted[1], wanted[2]}, nullptr);
    out[0] = given(std::move(all.x));
    out[1] = given(std::move(all.weight));
    out[2] = given(std::move(all.bias));
  });
}

// out: the result, and what backward needs: the scores' logarithms of sums, the generator's seed and offset, each null where
// the kernel has none.
int terrashard_attention(char** message, const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, double scale,
                         at::Tensor** out) {
  return guarded(message, [&] {
    auto [output, sums, seed, offset] = terrashard::attend(*q, *k, *v, scale);
    out[0] = given(std::move(output));
    out[1] = given(std::move(sums));
    out[2] = given(std::move(seed));
    out[3] = given(std::move(offset));
  });
}

// saved: what `terrashard_attention` gave. out: gradients of q, k and v.
int terrashard_attention_backward(char** message, const at::Tensor* gradient, const at::Tensor* q, const at::Tensor* k,
                                  const at::Tensor* v, const at::Tensor* const* saved, double scale, at::Tensor** out) {
  return guarded(message, [&] {
    const terrashard::Attended attended{*saved[0], value_or_undefined(saved[1]), value_or_undefined(saved[2]),
                                        value_or_undefined(saved[3])};
    auto gradients = terrashard::attend_backward(*gradient, *q, *k, *v, attended, scale);
    for (int i = 0; i < 3; i++) out[i] = given(std::move(gradients[i]));
  });
}

// Changes parameter, momentum and variance in place, and the gradient where the factor is not 1. divisor, failed: one number each of 32
// bits, or null both: by what the gradient is divided instead of the factor, and whether nothing is to change, where that is not nought.
int terrashard_adamw(char** message, at::Tensor* parameter, at::Tensor* gradient, at::Tensor* momentum,
                     at::Tensor* variance, int64_t step, double lr, double beta1, double beta2, double epsilon,
                     double weight_decay, double factor, const at::Tensor* divisor, const at::Tensor* failed) {
  return guarded(message, [&] {
    // Numbers made on the device: one copied there would wait until all before it is done.
    auto number = [&](double value) { return at::full({}, value, parameter->options().dtype(at::kFloat)); };
    // The kernel adds nothing to the count: it is that of the step being taken.
    auto count = number(static_cast<double>(step));
    std::optional<at::Tensor> by, not_at_all;
    if (divisor != nullptr) {
      by = *divisor;
    } else if (factor != 1.0) {
      by = number(1.0 / factor);
    }
    if (failed != nullptr) not_at_all = *failed;
    at::_fused_adamw_({*parameter}, {*gradient}, {*momentum}, {*variance}, {}, {count}, lr, beta1, beta2, weight_decay,
                      epsilon, false, false, by, not_at_all);
  });
}

int terrashard_is_deterministic() { return at::globalContext().deterministicAlgorithms() ? 1 : 0; }

int terrashard_set_deterministic(char** message, int on) {
  return guarded(message, [&] {
    // cuBLAS gives the same bits with a workspace of its own for each stream alone, and LibTorch refuses any other.
    if (on != 0) c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", false);
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(on != 0, false);
    // Fills what nobody reads before it is written, at twice the time of a step.
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(on != 0);
    context.setDeterministicMkldnn(on != 0);
    // Trying out algorithms may choose another one each time.
    if (on != 0) context.setBenchmarkCuDNN(false);
  });
}

// A program that was linked against LibTorch's part for the CPU learns of GPUs when the other part is loaded, if that is
// before anything asks LibTorch for one.
int terrashard_load_cuda(char** message) {
  return guarded(message, [] {
    const char* name = "libtorch_cuda.so";
    if (dlopen(name, RTLD_NOW | RTLD_NOLOAD) == nullptr && dlopen(name, RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw std::runtime_error(dlerror());
    // Without gaps between what is taken from a GPU, memory is used up when it is full and not before. What the environment says
    // of the allocator goes first.
    static std::once_flag once;
    std::call_once(once, [] {
      for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
        if (c10::utils::has_env(variable)) return;
      }
      c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
    });
  });
}

// Takes the first memory of all GPUs, from this one.
int terrashard_first_memory(char** message, int64_t device) {
  return guarded(message, [&] {
    at::empty({1}, at::TensorOptions(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device))));
  });
}

// out: bytes held by tensors now and at most, bytes taken from the device now and at most.
int terrashard_memory(char** message, int64_t device, int64_t* out) {
  return guarded(message, [&] {
    auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    out[0] = stats.allocated_bytes[0].current;
    out[1] = stats.allocated_bytes[0].peak;
    out[2] = stats.reserved_bytes[0].current;
    out[3] = stats.reserved_bytes[0].peak;
  });
}

int terrashard_reset_peak(char** message, int64_t device) {
  return guarded(message, [&] { at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

// The allocator of GPUs takes no more than so many bytes of this one, and the same share of others. It reads its settings when it
// begins, so this comes before the first tensor on a GPU.
int terrashard_limit_memory(char** message, int64_t device, int64_t bytes) {
  return guarded(message, [&] {
    const auto type = at::accelerator::getAccelerator(true).value();
    TORCH_CHECK(!at::getDeviceAllocator(type)->initialized(), "memory can be limited before the first tensor alone");
    const auto total = at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(device)).second;
    const auto share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
    std::ostringstream setting;
    setting << "per_process_memory_fraction:" << std::fixed << std::setprecision(12) << share;
    c10::CachingAllocator::setAllocatorSettings(setting.str());
    terrashard::limit_graphs(bytes);
  });
}

// From here on this thread's memory is counted, until `terrashard_counted_cpu`.
int terrashard_count_cpu(char** message) {
  return guarded(message, [] {
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<CpuBytes>());
  });
}

// out: the bytes at most, above what was there when the count began.
int terrashard_counted_cpu(char** message, int64_t* out) {
  return guarded(message, [&] {
    auto info = c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
    *out = static_cast<const CpuBytes&>(*info).peak;
  });
}

// Whether products of 32-bit matrices may round their factors to 19 bits, where the GPU can.
int terrashard_set_tf32(char** message, int on) {
  return guarded(message, [&] {
    auto& context = at::globalContext();
    context.setAllowTF32CuBLAS(on != 0);
    context.setAllowTF32CuDNN(on != 0);
  });
}

int terrashard_empty_cache(char** message) {
  return guarded(message, [&] { at::accelerator::emptyCache(); });
}

}  // extern "C"
