// What LibTorch computes and its Rust bindings leave out, as C functions for `src/shim.rs`.
//
// Every function returns 0, or 1 with the exception's text in `message`, which the caller frees with
// `terrashard_free_text`. Tensors in `out` belong to the caller, null where there is none; they do so after an error, too.
// Built against LibTorch's own headers alone: `at::accelerator` needs none of CUDA.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/tensor.h>
#include <torch/headeronly/version.h>

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace {

template <typename Body>
int guarded(char** message, Body body) {
  try {
    // burn differentiates, not LibTorch.
    at::AutoDispatchBelowADInplaceOrView guard;
    body();
    return 0;
  } catch (const c10::Error& error) {
    *message = strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    *message = strdup(error.what());
  } catch (...) {
    *message = strdup("an exception that says nothing");
  }
  return 1;
}

at::Tensor* given(at::Tensor tensor) {
  return tensor.defined() ? new at::Tensor(std::move(tensor)) : nullptr;
}

at::Tensor value_or_undefined(const at::Tensor* tensor) {
  return tensor == nullptr ? at::Tensor() : *tensor;
}

// In CUDA's memory there are two kernels that never build the matrix of scores; the faster one takes 16 bits only.
bool takes_flash(const at::Tensor& q) {
  return q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
}

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

// out: gradients of x, weight and bias.
int terrashard_layer_norm_backward(char** message, const at::Tensor* gradient, const at::Tensor* x,
                                   const at::Tensor* mean, const at::Tensor* inverse, const at::Tensor* weight,
                                   const bool* wanted, at::Tensor** out) {
  return guarded(message, [&] {
    // The bias has the weight's shape, and its values do not matter.
    auto [gx, gw, gb] = at::native_layer_norm_backward(*gradient, *x, weight->sizes(), *mean, *inverse, *weight,
                                                       *weight, {wanted[0], wanted[1], wanted[2]});
    out[0] = given(std::move(gx));
    out[1] = given(std::move(gw));
    out[2] = given(std::move(gb));
  });
}

// out: the result, and what backward needs: the scores' logarithms of sums, the generator's seed and offset.
int terrashard_attention(char** message, const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, double scale,
                         at::Tensor** out) {
  return guarded(message, [&] {
    if (q->is_cpu()) {
      auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(*q, *k, *v, 0.0, false, {}, scale);
      out[0] = given(std::move(output));
      out[1] = given(std::move(sums));
    } else if (takes_flash(*q)) {
      auto result = at::_scaled_dot_product_flash_attention(*q, *k, *v, 0.0, false, false, scale);
      out[0] = given(std::get<0>(result));
      out[1] = given(std::get<1>(result));
      out[2] = given(std::get<6>(result));
      out[3] = given(std::get<7>(result));
    } else {
      auto [output, sums, seed, offset] =
          at::_scaled_dot_product_efficient_attention(*q, *k, *v, {}, true, 0.0, false, scale);
      out[0] = given(std::move(output));
      out[1] = given(std::move(sums));
      out[2] = given(std::move(seed));
      out[3] = given(std::move(offset));
    }
  });
}

// saved: what `terrashard_attention` gave. out: gradients of q, k and v.
int terrashard_attention_backward(char** message, const at::Tensor* gradient, const at::Tensor* q, const at::Tensor* k,
                                  const at::Tensor* v, const at::Tensor* const* saved, double scale, at::Tensor** out) {
  return guarded(message, [&] {
    const at::Tensor &output = *saved[0], &sums = *saved[1];
    std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
    if (q->is_cpu()) {
      result = at::_scaled_dot_product_flash_attention_for_cpu_backward(*gradient, *q, *k, *v, output, sums, 0.0, false,
                                                                       {}, scale);
    } else if (takes_flash(*q)) {
      result = at::_scaled_dot_product_flash_attention_backward(
          *gradient, *q, *k, *v, output, sums, at::Tensor(), at::Tensor(), q->size(2), k->size(2), 0.0, false,
          value_or_undefined(saved[2]), value_or_undefined(saved[3]), scale);
    } else {
      auto [gq, gk, gv, bias] = at::_scaled_dot_product_efficient_attention_backward(
          *gradient, *q, *k, *v, at::Tensor(), output, sums, value_or_undefined(saved[2]),
          value_or_undefined(saved[3]), 0.0, {true, true, true, false}, false, scale);
      result = {gq, gk, gv};
    }
    out[0] = given(std::get<0>(result));
    out[1] = given(std::get<1>(result));
    out[2] = given(std::get<2>(result));
  });
}

// Changes parameter, momentum and variance in place.
int terrashard_adamw(char** message, at::Tensor* parameter, const at::Tensor* gradient, at::Tensor* momentum,
                     at::Tensor* variance, int64_t step, double lr, double beta1, double beta2, double epsilon,
                     double weight_decay) {
  return guarded(message, [&] {
    // The kernel adds nothing to the count: it is that of the step being taken.
    auto count = at::tensor(static_cast<float>(step), parameter->options().dtype(at::kFloat));
    at::_fused_adamw_({*parameter}, {*gradient}, {*momentum}, {*variance}, {}, {count}, lr, beta1, beta2, weight_decay,
                      epsilon, false, false);
  });
}

int terrashard_is_deterministic() { return at::globalContext().deterministicAlgorithms() ? 1 : 0; }

int terrashard_set_deterministic(char** message, int on) {
  return guarded(message, [&] {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(on != 0, false);
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
