// The two residual branches of a Mix Transformer's block, `x + kept * f(norm(x))`, each with its gradients as one call: the
// host has little to do, memory goes as soon as nobody needs it, and nothing is copied for the sake of a layout.
//
// Shapes: x [N, T, C] with T = height * width tokens; M tokens of the map that is reduced by `ratio`; hidden tensors
// [N, T, D]. A map [N, D, height, width] is a view of its tokens: channels last in memory.

#include "attention.h"
#include "compiled.h"
#include "depthwise.h"
#include "graph.h"
#include "guarded.h"
#include "norm.h"
#include "products.h"
#include "sums.h"
#include "views.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

using at::Tensor;
using terrashard::given;
using terrashard::guarded;
using terrashard::linear_input;
using terrashard::linear_weight;
using terrashard::Norm;
using terrashard::normalised;
using terrashard::permuted;
using terrashard::rows;
using terrashard::selected;
using terrashard::shaped;
using terrashard::sum_of_rows;
using terrashard::value_or_undefined;

extern "C" {

// As `src/branch.rs` has them.
struct TerrashardAttention {
  int64_t heads, height, width, ratio;
  double epsilon, reduced_epsilon;
};

struct TerrashardFeedForward {
  int64_t height, width, activation;
  double epsilon;
};

}  // extern "C"

namespace {

// [N, T, D] as [N, D, height, width].
Tensor as_map(const Tensor& x, int64_t height, int64_t width) {
  return permuted(shaped(x, {x.size(0), height, width, x.size(2)}), {0, 3, 1, 2});
}

// [N, D, height, width] as [N, T, D].
Tensor as_tokens(const Tensor& map) {
  return shaped(permuted(map, {0, 2, 3, 1}), {map.size(0), map.size(2) * map.size(3), map.size(1)});
}

// `x` as rows, if it is defined.
Tensor rows_or_undefined(const Tensor& x) { return x.defined() ? rows(x) : x; }

// x weight^T + bias over the last dimension, and `beside` added where there is that. Perhaps in the memory of `into`.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor* beside = nullptr,
              const Tensor& into = {}) {
  terrashard::Sizes sizes(x.sizes());
  sizes.back() = weight.size(0);
  const auto more = beside ? rows(*beside) : Tensor();
  return shaped(terrashard::linear(rows(x), weight, bias, beside ? &more : nullptr, rows_or_undefined(into)), sizes);
}

// [8, count] ones like x. Kept, since they are always the same, and never freed: a thread may end after its device has.
Tensor ones(const Tensor& x, int64_t count) {
  thread_local auto& kept = *new std::vector<Tensor>;
  for (auto& ones : kept) {
    if (ones.device() != x.device() || ones.scalar_type() != x.scalar_type()) continue;
    // Those that are too short stay, since a graph may read them.
    if (ones.size(1) >= count) return ones.narrow(1, 0, count);
  }
  kept.push_back(at::ones({8, count}, x.options()));
  return kept.back();
}

// Adds a value to each column. On a GPU as a product that adds to its result, which is twice as fast as a sum that repeats
// the values.
void add_to_columns(Tensor& x, const Tensor& values) {
  const auto width = x.size(1);
  if (!x.is_cuda() || !at::isReducedFloatingType(x.scalar_type()) || x.size(0) < 4096 || width % 8 != 0) {
    x.add_(values);
    return;
  }
  // Eighths of the values, eight times: exact, and as narrow as a product in 16 bits can be.
  x.addmm_(ones(x, x.size(0)).t(), values.expand({8, width}).div(8));
}

// A view of `x`, whose elements lie side by side, as [.., sizes], of elements of 16 bytes where those fit into the last size: copies
// are faster then.
Tensor widest(const Tensor& x, at::IntArrayRef sizes) {
  const auto elements = 16 / static_cast<int64_t>(x.element_size());
  if (!x.is_cuda() || sizes.back() % elements != 0 || !terrashard::is_vectors(x) || x.storage_offset() % elements != 0)
    return shaped(x, sizes);
  terrashard::Sizes wide(sizes);
  wide.back() /= elements;
  return terrashard::viewed_as(x, caffe2::TypeMeta::Make<c10::complex<double>>(), wide, terrashard::strides_of(wide),
                               x.storage_offset() / elements);
}

// What was copied as that, with its own elements: [rows, columns].
Tensor narrowed(const Tensor& copy, const Tensor& like, int64_t columns) {
  const auto whole = copy.contiguous();
  const auto elements = static_cast<int64_t>(whole.element_size() / like.element_size());
  const terrashard::Sizes sizes{whole.numel() * elements / columns, columns};
  return terrashard::viewed_as(whole, like.dtype(), sizes, terrashard::strides_of(sizes), whole.storage_offset() * elements);
}

// The parameters of a branch and the gradients of those that are wanted.
struct Parameters {
  const Tensor* const* values;
  const bool* wanted;
  Tensor** out;
  // Memory for each gradient, where it is not undefined.
  const Tensor* into;

  const Tensor& operator[](int index) const { return *values[index]; }

  void give(int index, Tensor gradient) const { out[index] = given(std::move(gradient)); }

  // Weight and bias from the gradient of `y = x weight^T + bias`.
  void give_linear(int weight, const Tensor& gradient, const Tensor& x) const {
    if (wanted[weight]) give(weight, linear_weight(gradient, x, into[weight]));
    if (wanted[weight + 1]) give(weight + 1, sum_of_rows(gradient, into[weight + 1]));
  }

  // Weight and bias of a normalisation; gives back the gradient of its input, with `beside` added where there is that, perhaps in the
  // memory of `into_input`.
  Tensor give_norm(int weight, const Tensor& gradient, const Tensor& x, const Norm& norm, bool input, const Tensor* beside,
                   const Tensor& into_input = {}) const {
    auto all = terrashard::normalised_backward(gradient, x, norm, *values[weight], *values[weight + 1],
                                               {input, wanted[weight], wanted[weight + 1]}, beside,
                                               {into_input, into[weight], into[weight + 1]});
    give(weight, std::move(all.weight));
    give(weight + 1, std::move(all.bias));
    return std::move(all.x);
  }
};

const Tensor& needed(const Tensor* kept) {
  TORCH_CHECK(kept != nullptr, "what forward kept is missing");
  return *kept;
}

// Whether backward makes again what a product made of the norm, which takes a GPU less time than it would take memory.
bool makes_queries_again(const Tensor& x) { return x.is_cuda(); }
bool makes_hidden_again(const Tensor& x) { return x.is_cuda() && x.size(-1) <= 512; }

// No samples: nothing to compute, and gradients of nought.
bool is_empty(const Tensor& x) { return x.numel() == 0; }

void give_zeros(const Tensor& x, const Parameters& parameters, int count, bool input, Tensor** out) {
  if (input) *out = given(at::zeros_like(x));
  for (int i = 0; i < count; i++) {
    if (parameters.values[i] != nullptr && parameters.wanted[i]) parameters.give(i, at::zeros_like(parameters[i]));
  }
}

// The branch's last layer, what is dropped of it, and x added.
Tensor last(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Tensor& x, const Tensor* kept,
            const Tensor& into) {
  if (kept == nullptr) return linear(hidden, weight, bias, &x, into);
  return linear(hidden, weight, bias, nullptr, into).mul_(*kept).add_(x);
}

// ---------------------------------------------------------------------------------------------------- attention

enum AttentionParameter { kNorm, kQ = 2, kKv = 4, kOut = 6, kReduction = 8, kReducedNorm = 10, kAttentionParameters = 12 };

// What forward keeps for backward.
enum AttentionSaved {
  kQueries,
  kKeysValues,
  kMixed,
  kSums,
  kReduced,
  kAttentionSaved
};

Tensor by_heads(const Tensor& x, int64_t heads) {
  return permuted(shaped(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}

// Keys and values, each [N, heads, M, d], of [N, M, 2 C].
std::array<Tensor, 2> keys_and_values(const Tensor& kv, int64_t heads) {
  const auto parts = permuted(shaped(kv, {kv.size(0), kv.size(1), 2, heads, kv.size(2) / 2 / heads}), {2, 0, 3, 1, 4});
  return {selected(parts, 0, 0), selected(parts, 0, 1)};
}

Tensor from_heads(const Tensor& x) {
  return shaped(permuted(x, {0, 2, 1, 3}), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

double scale_of(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(3))); }

// The reduction's kernel does not overlap, so it is a matrix product over patches where these fill the map.
bool fills(const TerrashardAttention& how) { return how.height % how.ratio == 0 && how.width % how.ratio == 0; }

// [N, T, C] as a row for each patch, of the tokens in it.
Tensor patch_rows(const Tensor& x, const TerrashardAttention& how) {
  const auto r = how.ratio;
  const auto all = widest(x, {x.size(0), how.height / r, r, how.width / r, r, x.size(2)});
  return narrowed(permuted(all, {0, 1, 3, 2, 4, 5}), x, r * r * x.size(2));
}

// The opposite, as rows of tokens.
Tensor from_patch_rows(const Tensor& x, int64_t channels, const TerrashardAttention& how) {
  const auto r = how.ratio, h = how.height / r, w = how.width / r;
  const auto all = widest(x, {x.size(0) / (h * w), h, w, r, r, channels});
  return narrowed(permuted(all, {0, 1, 3, 2, 4, 5}), x, channels);
}

// [out, in, r, r] as [out, r r in].
Tensor patch_weight(const Tensor& weight) {
  return shaped(permuted(weight, {0, 2, 3, 1}), {weight.size(0), weight.numel() / weight.size(0)});
}

Tensor reduced_map(const Tensor& x, const Parameters& p, const TerrashardAttention& how, const Tensor& into) {
  if (fills(how)) {
    const auto y =
        linear(patch_rows(x, how), patch_weight(p[kReduction]), p[kReduction + 1], nullptr, rows_or_undefined(into));
    return shaped(y, {x.size(0), y.size(0) / x.size(0), y.size(1)});
  }
  return as_tokens(at::conv2d(as_map(x, how.height, how.width), p[kReduction], p[kReduction + 1],
                              {how.ratio, how.ratio}));
}

// Gives the gradient of the reduction's input, as rows.
Tensor reduced_map_backward(const Tensor& gradient, const Tensor& x, const Parameters& p,
                            const TerrashardAttention& how) {
  const auto& weight = p[kReduction];
  const auto r = how.ratio;
  if (fills(how)) {
    const auto g = rows(gradient);
    if (p.wanted[kReduction]) {
      const auto gw = shaped(linear_weight(g, patch_rows(x, how)), {weight.size(0), r, r, weight.size(1)});
      p.give(kReduction, permuted(gw, {0, 3, 1, 2}).contiguous());
    }
    if (p.wanted[kReduction + 1]) p.give(kReduction + 1, sum_of_rows(g, p.into[kReduction + 1]));
    return from_patch_rows(linear_input(g, patch_weight(weight)), weight.size(1), how);
  }
  std::array<int64_t, 1> bias{weight.size(0)};
  auto [gmap, gw, gb] = at::convolution_backward(
      as_map(gradient, how.height / r, how.width / r), as_map(x, how.height, how.width), weight,
      at::IntArrayRef(bias), {r, r}, {0, 0}, {1, 1}, false, {0, 0}, 1,
      {true, p.wanted[kReduction], p.wanted[kReduction + 1]});
  p.give(kReduction, gw);
  p.give(kReduction + 1, gb);
  return rows(as_tokens(gmap));
}

// ---------------------------------------------------------------------------------------------------- feed-forward

enum FeedForwardParameter { kFeedNorm, kFirst = 2, kDepthwise = 4, kSecond = 6, kFeedForwardParameters = 8 };

enum FeedForwardSaved { kHidden, kConvolved, kFeedForwardSaved };

enum Activation { kGelu, kSilu, kRelu, kMish };

Tensor activated(const Tensor& x, int64_t activation) {
  switch (activation) {
    case kGelu:
      return at::gelu(x);
    case kSilu:
      return at::silu(x);
    case kMish:
      return at::mish(x);
    default:
      return at::threshold(x, 0, 0);
  }
}

// The gradient of x, in the place of that of the result where there is a kernel for that.
Tensor activated_backward(Tensor gradient, const Tensor& x, int64_t activation) {
  switch (activation) {
    case kGelu:
      return at::gelu_backward_out(gradient, gradient, x);
    case kSilu:
      return at::silu_backward_out(gradient, gradient, x);
    case kMish:
      return at::mish_backward(gradient, x);
    default:
      return at::threshold_backward_out(gradient, gradient, x, 0);
  }
}

// The depthwise convolution, and the activation of what it gives.
terrashard::Depthwise convolved_and_activated(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                              const TerrashardFeedForward& how, const Tensor& into) {
  auto both = terrashard::depthwise(x, weight, bias, how.height, how.width, how.activation == kGelu, into);
  if (!both) {
    const auto map = as_map(x, how.height, how.width);
    both = {x.is_cuda() ? as_tokens(at::conv2d(map, weight, {}, 1, 1, 1, x.size(2)))
                        : as_tokens(at::conv2d(map, weight, bias, 1, 1, 1, x.size(2))),
            {}};
    if (x.is_cuda()) {
      // cuDNN's convolution is without the bias.
      auto values = rows(both->convolved);
      add_to_columns(values, bias);
    }
  }
  if (!both->activated.defined()) both->activated = activated(both->convolved, how.activation);
  return *both;
}

// Gives the gradients of the depthwise convolution's weight and bias, and gives back that of its input.
Tensor depthwise_backward(const Tensor& gradient, const Tensor& x, const Parameters& p, const TerrashardFeedForward& how) {
  if (auto all = terrashard::depthwise_backward(gradient, x, p[kDepthwise], how.height, how.width, p.into[kDepthwise],
                                                 p.into[kDepthwise + 1])) {
    if (p.wanted[kDepthwise]) p.give(kDepthwise, all->weight);
    if (p.wanted[kDepthwise + 1]) p.give(kDepthwise + 1, all->bias);
    return all->x;
  }
  // Its bias' gradient is a sum over rows like all others.
  if (p.wanted[kDepthwise + 1]) p.give(kDepthwise + 1, sum_of_rows(rows(gradient)));
  auto [gmap, gw, none] = at::convolution_backward(
      as_map(gradient, how.height, how.width), as_map(x, how.height, how.width), p[kDepthwise], {}, {1, 1}, {1, 1},
      {1, 1}, false, {0, 0}, x.size(2), {true, p.wanted[kDepthwise], false});
  p.give(kDepthwise, gw);
  return as_tokens(gmap);
}

// ---------------------------------------------------------------------------------------------------- graphs

enum Call { kAttentionForward, kAttentionBackward, kFeedForwardForward, kFeedForwardBackward };

// `moving`: what is neither a parameter nor `saved`, at the end the factors of samples.
terrashard::Task task(Call call, std::array<int64_t, 6> settings, std::initializer_list<const Tensor*> moving,
                      const Tensor* const* parameters, int count, const Tensor* const* saved, int saved_count,
                      Tensor** out, int outs, const bool* wanted) {
  terrashard::Task task{call, settings, {}, moving.size(), moving.size(), out, static_cast<size_t>(outs), wanted};
  task.inputs.append(moving.begin(), moving.end());
  task.inputs.append(parameters, parameters + count);
  task.inputs.append(saved, saved + saved_count);
  return task;
}

// A number's bits, to be compared.
int64_t bits(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

std::array<int64_t, 6> settings(const TerrashardAttention& how) {
  return {how.heads, how.height, how.width, how.ratio, bits(how.epsilon), bits(how.reduced_epsilon)};
}

std::array<int64_t, 6> settings(const TerrashardFeedForward& how) {
  return {how.height, how.width, how.activation, bits(how.epsilon)};
}

}  // namespace

extern "C" {

// parameters: weights and biases of norm, q, kv, out, reduction and reduced norm; the last two null where ratio is 1.
// kept: [N, 1, 1] or null. out: the result, then what backward needs.
int terrashard_attention_branch(char** message, const Tensor* x, const Tensor* const* parameters,
                                const TerrashardAttention* how, const Tensor* kept, Tensor** out) {
  return guarded(message, [&] {
    if (is_empty(*x)) {
      out[0] = given(at::empty_like(*x));
      return;
    }
    const auto task = ::task(kAttentionForward, settings(*how), {x, kept}, parameters, kAttentionParameters, nullptr, 0, out,
                             1 + kAttentionSaved, nullptr);
    terrashard::by_graph(task, [&](const Tensor* const* moving, const Tensor* into) {
      const auto [x, kept] = std::array{moving[0], moving[1]};
      const Parameters p{parameters, nullptr, nullptr, nullptr};
      auto* saved = out + 1;
      const auto* into_saved = into + 1;
      auto source = normalised(*x, p[kNorm], p[kNorm + 1], how->epsilon).y;
      const auto q = linear(source, p[kQ], p[kQ + 1]);
      if (!makes_queries_again(*x)) saved[kQueries] = given(q);
      if (how->ratio > 1) {
        auto reduced = reduced_map(source, p, *how, into_saved[kReduced]);
        source = normalised(reduced, p[kReducedNorm], p[kReducedNorm + 1], how->reduced_epsilon).y;
        saved[kReduced] = given(std::move(reduced));
      }
      const auto kv = linear(source, p[kKv], p[kKv + 1], nullptr, into_saved[kKeysValues]);
      source.reset();
      const auto heads = by_heads(q, how->heads);
      const auto [k, v] = keys_and_values(kv, how->heads);
      auto attended = terrashard::attend(heads, k, v, scale_of(heads));
      const auto mixed = from_heads(attended.output);
      out[0] = given(last(mixed, p[kOut], p[kOut + 1], *x, kept, into[0]));
      saved[kKeysValues] = given(kv);
      saved[kMixed] = given(mixed);
      saved[kSums] = given(std::move(attended.sums));
    });
  });
}

// wanted and out: those of x, then those of the parameters.
int terrashard_attention_branch_backward(char** message, const Tensor* gradient, const Tensor* x,
                                         const Tensor* const* parameters, const Tensor* const* saved,
                                         const TerrashardAttention* how, const Tensor* kept, const bool* wanted,
                                         Tensor** out) {
  return guarded(message, [&] {
    if (is_empty(*x)) return give_zeros(*x, {parameters, wanted + 1, out + 1, nullptr}, kAttentionParameters, wanted[0], out);
    const auto task = ::task(kAttentionBackward, settings(*how), {gradient, x, kept}, parameters, kAttentionParameters, saved,
                             kAttentionSaved, out, 1 + kAttentionParameters, wanted);
    terrashard::by_graph(task, [&](const Tensor* const* moving, const Tensor* into) {
      const auto [gradient, x, kept] = std::array{moving[0], moving[1], moving[2]};
      const Parameters p{parameters, wanted + 1, out + 1, into + 1};
      const auto& mixed = needed(saved[kMixed]);
      const auto norm = normalised(*x, p[kNorm], p[kNorm + 1], how->epsilon);
      Tensor gq, gkv;
      {
        const auto gy = rows(kept == nullptr ? gradient->contiguous() : gradient->mul(*kept));
        p.give_linear(kOut, gy, rows(mixed));
        const auto gmixed = by_heads(shaped(linear_input(gy, p[kOut]), mixed.sizes()), how->heads);
        const auto q = by_heads(
            saved[kQueries] == nullptr ? linear(norm.y, p[kQ], p[kQ + 1]) : *saved[kQueries], how->heads);
        const auto [k, v] = keys_and_values(needed(saved[kKeysValues]), how->heads);
        const terrashard::Attended attended{by_heads(mixed, how->heads), value_or_undefined(saved[kSums]), {}, {}};
        auto [gheads, gk, gv] = terrashard::attend_backward(gmixed, q, k, v, attended, scale_of(q));
        gq = rows(from_heads(gheads));
        gkv = at::stack({permuted(gk, {0, 2, 1, 3}), permuted(gv, {0, 2, 1, 3})}, 2);
        gkv = shaped(gkv, {gkv.numel() / p[kKv].size(0), p[kKv].size(0)});
      }
      p.give_linear(kQ, gq, rows(norm.y));
      Tensor gn;
      if (how->ratio > 1) {
        const auto& reduced = needed(saved[kReduced]);
        const auto second = normalised(reduced, p[kReducedNorm], p[kReducedNorm + 1], how->reduced_epsilon);
        p.give_linear(kKv, gkv, rows(second.y));
        const auto gsource = shaped(linear_input(gkv, p[kKv]), reduced.sizes());
        const auto greduced = p.give_norm(kReducedNorm, gsource, reduced, second, true, nullptr);
        gn = reduced_map_backward(greduced, norm.y, p, *how);
      } else {
        p.give_linear(kKv, gkv, rows(norm.y));
        gn = linear_input(gkv, p[kKv]);
      }
      terrashard::add_linear_input(gn, gq, p[kQ]);
      gq.reset();
      out[0] = given(p.give_norm(kNorm, shaped(gn, x->sizes()), *x, norm, wanted[0], gradient, into[0]));
    });
  });
}

// parameters: weights and biases of norm, first layer, depthwise convolution and second layer.
int terrashard_feed_forward_branch(char** message, const Tensor* x, const Tensor* const* parameters,
                                   const TerrashardFeedForward* how, const Tensor* kept, Tensor** out) {
  return guarded(message, [&] {
    if (is_empty(*x)) {
      out[0] = given(at::empty_like(*x));
      return;
    }
    const auto task = ::task(kFeedForwardForward, settings(*how), {x, kept}, parameters, kFeedForwardParameters, nullptr, 0, out,
                             1 + kFeedForwardSaved, nullptr);
    terrashard::by_graph(task, [&](const Tensor* const* moving, const Tensor* into) {
      const auto [x, kept] = std::array{moving[0], moving[1]};
      const Parameters p{parameters, nullptr, nullptr, nullptr};
      auto hidden =
          linear(normalised(*x, p[kFeedNorm], p[kFeedNorm + 1], how->epsilon).y, p[kFirst], p[kFirst + 1]);
      if (!makes_hidden_again(*x)) out[1 + kHidden] = given(hidden);
      auto both = convolved_and_activated(hidden, p[kDepthwise], p[kDepthwise + 1], *how, into[1 + kConvolved]);
      hidden.reset();
      out[0] = given(last(both.activated, p[kSecond], p[kSecond + 1], *x, kept, into[0]));
      out[1 + kConvolved] = given(std::move(both.convolved));
    });
  });
}

// wanted and out: those of x, then those of the parameters.
int terrashard_feed_forward_branch_backward(char** message, const Tensor* gradient, const Tensor* x,
                                            const Tensor* const* parameters, const Tensor* const* saved,
                                            const TerrashardFeedForward* how, const Tensor* kept, const bool* wanted,
                                            Tensor** out) {
  return guarded(message, [&] {
    if (is_empty(*x)) return give_zeros(*x, {parameters, wanted + 1, out + 1, nullptr}, kFeedForwardParameters, wanted[0], out);
    const auto task = ::task(kFeedForwardBackward, settings(*how), {gradient, x, kept}, parameters, kFeedForwardParameters, saved,
                             kFeedForwardSaved, out, 1 + kFeedForwardParameters, wanted);
    terrashard::by_graph(task, [&](const Tensor* const* moving, const Tensor* into) {
      const auto [gradient, x, kept] = std::array{moving[0], moving[1], moving[2]};
      const Parameters p{parameters, wanted + 1, out + 1, into + 1};
      const auto& convolved = needed(saved[kConvolved]);
      const auto norm = normalised(*x, p[kFeedNorm], p[kFeedNorm + 1], how->epsilon);
      Tensor ghidden;
      {
        const auto gy = rows(kept == nullptr ? gradient->contiguous() : gradient->mul(*kept));
        p.give_linear(kSecond, gy, rows(activated(convolved, how->activation)));
        auto gconvolved = activated_backward(shaped(linear_input(gy, p[kSecond]), convolved.sizes()), convolved, how->activation);
        const auto hidden = saved[kHidden] == nullptr ? linear(norm.y, p[kFirst], p[kFirst + 1]) : *saved[kHidden];
        ghidden = rows(depthwise_backward(gconvolved, hidden, p, *how));
      }
      p.give_linear(kFirst, ghidden, rows(norm.y));
      const auto gn = shaped(linear_input(ghidden, p[kFirst]), x->sizes());
      ghidden.reset();
      out[0] = given(p.give_norm(kFeedNorm, gn, *x, norm, wanted[0], gradient, into[0]));
    });
  });
}

}  // extern "C"
