// Sums over rows, on NVIDIA GPUs by a kernel of our own.

#pragma once

#include <ATen/core/Tensor.h>

namespace terrashard {

// x: [rows, columns]. The sum over all rows, [columns], of x's type; types of 16 bits are added up in 32. Perhaps in the memory
// of `into`.
at::Tensor sum_of_rows(const at::Tensor& x, const at::Tensor& into = {});

}  // namespace terrashard
