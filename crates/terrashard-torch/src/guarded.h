// What every C function of this crate does: no exception leaves it, and nothing is recorded by LibTorch's own autograd.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <utility>

namespace terrashard {

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

inline at::Tensor* given(at::Tensor tensor) {
  return tensor.defined() ? new at::Tensor(std::move(tensor)) : nullptr;
}

inline at::Tensor value_or_undefined(const at::Tensor* tensor) {
  return tensor == nullptr ? at::Tensor() : *tensor;
}

}  // namespace terrashard
