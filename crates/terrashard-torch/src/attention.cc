// Attention by the kernel that fits device, type and width of a head.

#include "attention.h"

#include "views.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace terrashard {
namespace {

// Elements of a part of the matrix of scores, where it is built part by part.
constexpr int64_t kPart = int64_t{1} << 24;

enum class Kernel {
  // Never builds the matrix of scores.
  kFlashForCpu,
  kFlash,
  // As flash attention; its gradients walk over the keys in few, long pieces, and with few keys use a fraction of a GPU.
  kEfficient,
  // Parts of the matrix of scores.
  kMatrices,
};

Kernel kernel_of(const at::Tensor& q) {
  const auto width = q.size(3);
  const auto type = q.scalar_type();
  if (q.is_cpu()) return Kernel::kFlashForCpu;
  if (type == at::kHalf || type == at::kBFloat16) {
    return width % 8 == 0 && width <= 256 ? Kernel::kFlash : Kernel::kMatrices;
  }
  return type == at::kFloat && width % 4 == 0 ? Kernel::kEfficient : Kernel::kMatrices;
}

// Calls `body` with the first query and the number of queries of each part.
template <typename Body>
void by_parts(const at::Tensor& q, const at::Tensor& k, Body body) {
  const auto rows = q.size(2);
  const auto row = std::max<int64_t>(1, q.size(0) * q.size(1) * k.size(2));
  const auto part = std::max<int64_t>(1, kPart / row);
  for (int64_t first = 0; first < rows; first += part) body(first, std::min(part, rows - first));
}

at::Tensor probabilities(const at::Tensor& q, const at::Tensor& keys, double scale) {
  return at::_softmax(at::matmul(q, keys).mul_(scale), -1, false);
}

// [N, heads, T, d] as [N, T, heads, d], and back.
at::Tensor by_tokens(const at::Tensor& x) { return permuted(x, {0, 2, 1, 3}); }

// [N, heads, T, d] that lies in memory as [N, T, heads, d], as the other kernels' results do.
at::Tensor empty_by_tokens(const at::Tensor& like) {
  const auto size = like.sizes();
  return at::empty({size[0], size[2], size[1], size[3]}, like.options()).transpose(1, 2);
}

at::Tensor matrices(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  auto output = empty_by_tokens(q);
  const auto keys = k.transpose(2, 3);
  by_parts(q, k, [&](int64_t first, int64_t count) {
    output.narrow(2, first, count).copy_(at::matmul(probabilities(q.narrow(2, first, count), keys, scale), v));
  });
  return output;
}

std::array<at::Tensor, 3> matrices_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, double scale) {
  auto gq = empty_by_tokens(q);
  at::Tensor gk, gv;
  const auto keys = k.transpose(2, 3), values = v.transpose(2, 3);
  by_parts(q, k, [&](int64_t first, int64_t count) {
    const auto g = gradient.narrow(2, first, count), queries = q.narrow(2, first, count);
    const auto p = probabilities(queries, keys, scale);
    auto part_v = at::matmul(p.transpose(2, 3), g);
    const auto gs = at::_softmax_backward_data(at::matmul(g, values), p, -1, p.scalar_type()).mul_(scale);
    gq.narrow(2, first, count).copy_(at::matmul(gs, k));
    auto part_k = at::matmul(gs.transpose(2, 3), queries);
    gk = gk.defined() ? gk.add_(part_k) : part_k;
    gv = gv.defined() ? gv.add_(part_v) : part_v;
  });
  if (!gk.defined()) return {gq, at::zeros_like(k), at::zeros_like(v)};
  return {gq, gk, gv};
}

// Stands for a seed or an offset that nobody reads. Never freed: threads may end after their device has.
const at::Tensor& unread() {
  static const auto& unread = *new at::Tensor(at::empty({}, at::kLong));
  return unread;
}

}  // namespace

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  switch (kernel_of(q)) {
    case Kernel::kFlashForCpu: {
      auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, {}, scale);
      return {output, sums, {}, {}};
    }
    case Kernel::kFlash: {
      // Below what turns the tensors on their way in and out: the kernel reads tokens before heads.
      auto result = at::_flash_attention_forward(by_tokens(q), by_tokens(k), by_tokens(v), {}, {}, q.size(2), k.size(2), 0.0,
                                                 false, false, scale);
      return {by_tokens(std::get<0>(result)), std::get<1>(result), std::get<2>(result), std::get<3>(result)};
    }
    case Kernel::kEfficient: {
      auto result = at::_scaled_dot_product_efficient_attention(q, k, v, {}, false, 0.0, false, scale);
      return {std::get<0>(result), {}, {}, {}};
    }
    case Kernel::kMatrices:
      break;
  }
  return {matrices(q, k, v, scale), {}, {}, {}};
}

std::array<at::Tensor, 3> attend_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const Attended& saved, double scale) {
  const auto gradients = [](auto&& result) -> std::array<at::Tensor, 3> {
    return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
  };
  switch (kernel_of(q)) {
    case Kernel::kFlashForCpu:
      return gradients(at::_scaled_dot_product_flash_attention_for_cpu_backward(
          gradient, q, k, v, saved.output, saved.sums, 0.0, false, {}, scale));
    case Kernel::kFlash: {
      auto [gq, gk, gv] = at::_flash_attention_backward(by_tokens(gradient), by_tokens(q), by_tokens(k), by_tokens(v),
                                                        by_tokens(saved.output), saved.sums, at::Tensor(), at::Tensor(),
                                                        q.size(2), k.size(2), 0.0, false, saved.seed.defined() ? saved.seed : unread(),
                                                        saved.offset.defined() ? saved.offset : unread(), scale);
      return {by_tokens(gq), by_tokens(gk), by_tokens(gv)};
    }
    case Kernel::kEfficient:
    case Kernel::kMatrices:
      break;
  }
  return matrices_backward(gradient, q, k, v, scale);
}

}  // namespace terrashard
