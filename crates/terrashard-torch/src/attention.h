// Attention for `shim.cc` and `branch.cc`: which kernel computes it, and its gradients.
//
// Shapes: q [N, heads, T, d], k and v [N, heads, M, d], the last dimension contiguous.

#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace terrashard {

// The result, and what its gradients need beside the inputs: the scores' logarithms of sums, and the generator's seed and
// offset, of which a kernel without dropout makes no use but which it asks for; they may be undefined.
struct Attended {
  at::Tensor output, sums, seed, offset;
};

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);

// Gradients of q, k and v.
std::array<at::Tensor, 3> attend_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const Attended& saved, double scale);

}  // namespace terrashard
