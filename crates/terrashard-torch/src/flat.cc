// Many tensors and one flat buffer, for `src/flat.rs`, by the rules of `shim.cc`.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "guarded.h"
#include "views.h"

using terrashard::given;
using terrashard::guarded;

namespace {

// Some of a contiguous tensor's elements, flat.
at::Tensor run(const at::Tensor& tensor, int64_t begin, int64_t length) {
  return terrashard::viewed(tensor, {length}, {1}, tensor.storage_offset() + begin);
}

// Tensors that are cut into a piece for each row of a buffer.
struct Pieces {
  int64_t rows, columns;
  const int64_t *offsets, *lengths;

  void check(const at::Tensor& buffer, int64_t count) const {
    TORCH_CHECK(buffer.is_contiguous() && buffer.numel() == rows * columns, "the buffer is not of ", rows, " rows of ",
                columns, " elements");
    for (int64_t i = 0; i < count; i++)
      TORCH_CHECK(offsets[i] >= 0 && lengths[i] >= 0 && offsets[i] + lengths[i] <= columns, "piece ", i,
                  " is not in a row");
  }

  // Calls `each` with the place in the buffer of every piece of tensor `i`, and which run of its elements that is.
  template <typename Each>
  void of(int64_t i, int64_t elements, Each each) const {
    TORCH_CHECK(elements <= rows * lengths[i], "tensor ", i, " has more elements than its pieces");
    for (int64_t row = 0; row < rows; row++) {
      int64_t begin = row * lengths[i];
      int64_t length = std::max<int64_t>(0, std::min(lengths[i], elements - begin));
      each(row * columns + offsets[i], begin, length);
    }
  }
};

}  // namespace

extern "C" {

// tensors: null where there is none.
int terrashard_pack(char** message, const at::Tensor* const* tensors, int64_t count, at::Tensor* buffer, int64_t rows,
                    int64_t columns, const int64_t* offsets, const int64_t* lengths) {
  return guarded(message, [&] {
    Pieces pieces{rows, columns, offsets, lengths};
    pieces.check(*buffer, count);
    std::vector<at::Tensor> to, from, rest;
    to.reserve(rows * count);
    from.reserve(rows * count);
    for (int64_t i = 0; i < count; i++) {
      at::Tensor source = tensors[i] == nullptr ? at::Tensor() : tensors[i]->contiguous();
      pieces.of(i, source.defined() ? source.numel() : 0, [&](int64_t place, int64_t begin, int64_t length) {
        if (length > 0) {
          to.push_back(run(*buffer, place, length));
          from.push_back(run(source, begin, length));
        }
        if (length < lengths[i]) rest.push_back(run(*buffer, place + length, lengths[i] - length));
      });
    }
    if (!to.empty()) at::_foreach_copy_(to, from);
    if (!rest.empty()) at::_foreach_zero_(rest);
  });
}

int terrashard_unpack(char** message, const at::Tensor* buffer, at::Tensor* const* tensors, int64_t count, int64_t rows,
                      int64_t columns, const int64_t* offsets, const int64_t* lengths) {
  return guarded(message, [&] {
    Pieces pieces{rows, columns, offsets, lengths};
    pieces.check(*buffer, count);
    std::vector<at::Tensor> to, from;
    to.reserve(rows * count);
    from.reserve(rows * count);
    for (int64_t i = 0; i < count; i++) {
      const at::Tensor& target = *tensors[i];
      TORCH_CHECK(target.is_contiguous(), "tensor ", i, " is not contiguous");
      pieces.of(i, target.numel(), [&](int64_t place, int64_t begin, int64_t length) {
        if (length == 0) return;
        to.push_back(run(target, begin, length));
        from.push_back(run(*buffer, place, length));
      });
    }
    if (!to.empty()) at::_foreach_copy_(to, from);
  });
}

// out: one number for each tensor.
int terrashard_sums_of_squares(char** message, const at::Tensor* const* tensors, int64_t count, at::Tensor** out) {
  return guarded(message, [&] {
    std::vector<at::Tensor> list;
    for (int64_t i = 0; i < count; i++) list.push_back(*tensors[i]);
    std::optional<at::ScalarType> wide;
    if (c10::isReducedFloatingType(list.at(0).scalar_type())) wide = at::kFloat;
    out[0] = given(at::stack(at::_foreach_norm(list, 2, wide)).to(at::kDouble).square_());
  });
}

}  // extern "C"
