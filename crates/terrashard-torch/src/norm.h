// Layer normalisation over the last dimension, with its gradients.

#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace terrashard {

struct Norm {
  // The result, and for each row the mean and the inverse deviation.
  at::Tensor y, mean, inverse;
};

Norm normalised(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

struct NormGradients {
  at::Tensor x, weight, bias;
};

// Those that are wanted of x, and of weight and bias, perhaps in the memory of `into`. `beside`, if there is one, is added to that of
// x.
NormGradients normalised_backward(const at::Tensor& gradient, const at::Tensor& x, const Norm& norm, const at::Tensor& weight,
                                  const at::Tensor& bias, std::array<bool, 3> wanted, const at::Tensor* beside,
                                  const NormGradients& into = {});

}  // namespace terrashard
