// The depthwise 3 x 3 convolution of feed-forward branches, on NVIDIA GPUs by kernels of our own.
//
// Shapes: x and results [N, T, D], tokens of a map of height * width pixels; weight [D, 1, 3, 3], bias [D].

#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace terrashard {

struct Depthwise {
  at::Tensor convolved;
  // GELU of the result, undefined unless it was asked for.
  at::Tensor activated;
};

// Nothing where the kernels do not suit: callers have another way. Perhaps in the memory of `into`, as below.
std::optional<Depthwise> depthwise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t height,
                                   int64_t width, bool activated, const at::Tensor& into = {});

struct DepthwiseGradients {
  at::Tensor x, weight, bias;
};

// Gradients of x, weight and bias. Nothing as above.
std::optional<DepthwiseGradients> depthwise_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                     const at::Tensor& weight, int64_t height, int64_t width,
                                                     const at::Tensor& into_weight = {}, const at::Tensor& into_bias = {});

}  // namespace terrashard
