// Views of tensors and new ones that do not pass through LibTorch's dispatcher, where each costs the host as much as starting a kernel.
//
// They know nothing of LibTorch's own autograd, which nothing here uses.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace terrashard {

using Sizes = c10::SmallVector<int64_t, 6>;

// The memory of `x` from element `offset` of `type` on.
inline at::Tensor viewed_as(const at::Tensor& x, caffe2::TypeMeta type, at::IntArrayRef sizes, at::IntArrayRef strides,
                            int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(x.storage()), x.key_set(), type);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return view;
}

inline at::Tensor viewed(const at::Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  return viewed_as(x, x.dtype(), sizes, strides, offset);
}

// The strides of elements that lie side by side.
inline Sizes strides_of(at::IntArrayRef sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (auto i = static_cast<int64_t>(sizes.size()) - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// `x` with other sizes; a copy unless its elements lie side by side.
inline at::Tensor shaped(const at::Tensor& x, at::IntArrayRef sizes) {
  const auto whole = x.is_contiguous() ? x : x.contiguous();
  int64_t count = 1;
  for (const auto size : sizes) count *= size;
  TORCH_CHECK(count == x.numel(), "a tensor of ", x.sizes(), " cannot be one of ", sizes);
  return viewed(whole, sizes, strides_of(sizes), whole.storage_offset());
}

// All tokens as rows: [.., C] as [rows, C].
inline at::Tensor rows(const at::Tensor& x) {
  const auto last = x.size(-1);
  return shaped(x, {last == 0 ? 0 : x.numel() / last, last});
}

inline at::Tensor permuted(const at::Tensor& x, std::initializer_list<int64_t> dims) {
  Sizes sizes, strides;
  for (const auto dim : dims) {
    sizes.push_back(x.size(dim));
    strides.push_back(x.stride(dim));
  }
  return viewed(x, sizes, strides, x.storage_offset());
}

// [a, b] as [b, a].
inline at::Tensor turned(const at::Tensor& matrix) { return permuted(matrix, {1, 0}); }

// `x` without dimension `dim`, at `index` of it.
inline at::Tensor selected(const at::Tensor& x, int64_t dim, int64_t index) {
  Sizes sizes(x.sizes()), strides(x.strides());
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return viewed(x, sizes, strides, x.storage_offset() + index * x.stride(dim));
}

// New memory on the device of `like`, which is the current one, for elements that lie side by side.
inline at::Tensor fresh(at::IntArrayRef sizes, const at::Tensor& like, at::ScalarType type) {
  if (!like.is_cuda()) return at::empty(sizes, like.options().dtype(type));
  return at::detail::empty_generic(sizes, c10::GetAllocator(c10::DeviceType::CUDA), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   type, std::nullopt);
}

// The same, in the memory of `into` if that is such a tensor: results are asked for there.
inline at::Tensor fresh(at::IntArrayRef sizes, const at::Tensor& like, at::ScalarType type, const at::Tensor& into) {
  const bool fits = into.defined() && into.sizes() == sizes && into.scalar_type() == type && into.is_contiguous();
  return fits ? into : fresh(sizes, like, type);
}

inline at::Tensor fresh_like(const at::Tensor& like) { return fresh(like.sizes(), like, like.scalar_type()); }

}  // namespace terrashard
