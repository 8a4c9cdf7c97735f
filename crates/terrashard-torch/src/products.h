// The matrix products of linear layers and of their gradients, with what is added beside them in the same kernel.
//
// On NVIDIA GPUs in 16 bits by cuBLASLt, whose choice of a kernel is kept for each shape: LibTorch asks for it again at every
// product, which costs the host as much as all else of it. Elsewhere by LibTorch. Sums are of 32 bits.
//
// Shapes: x [rows, in], weight [out, in], gradient [rows, out], all matrices.

#pragma once

#include <ATen/core/Tensor.h>

namespace terrashard {

// x weight^T + bias, and `beside` [rows, out] too where there is that. Perhaps in the memory of `into`, as below.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor* beside,
                  const at::Tensor& into = {});

// gradient weight, that of x.
at::Tensor linear_input(const at::Tensor& gradient, const at::Tensor& weight);

// The same, added to `sum` [rows, in].
void add_linear_input(at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& weight);

// gradient^T x, that of the weight.
at::Tensor linear_weight(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& into = {});

}  // namespace terrashard
