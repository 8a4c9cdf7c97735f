// cuBLASLt is opened at run time, since this is built without CUDA: the few functions and numbers that are needed are declared
// here, as NVIDIA documents them.

#include "products.h"

#include "graph.h"
#include "library.h"
#include "views.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>

#include <dlfcn.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>

namespace terrashard {
namespace {

using at::Tensor;

enum Number : int32_t { kF32 = 0, kF16 = 2, kBf16 = 14 };
constexpr int32_t kComputeInF32 = 68;
enum DescriptionAttribute { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
constexpr uint32_t kBiasEpilogue = 4;
enum PreferenceAttribute { kMostWorkspace = 1, kReductions = 3, kAlignmentA = 5, kAlignmentB, kAlignmentC, kAlignmentD };
// Partial sums in 32 bits: neither in the result's type nor in its place.
constexpr uint32_t kReduceInF32 = 2;
// Bytes of memory that a product may take beside its result.
constexpr uint64_t kWorkspace = uint64_t{32} << 20;

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

// What is called of the library; all there, or `works` is false.
struct Library {
  int (*create)(void** handle);
  int (*describe)(void** description, int32_t compute, int32_t scale);
  int (*set)(void* description, int attribute, const void* value, size_t size);
  int (*lay_out)(void** layout, int32_t type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*prefer)(void** preference);
  int (*set_preference)(void* preference, int attribute, const void* value, size_t size);
  int (*drop_preference)(void* preference);
  int (*choose)(void* handle, void* description, void* a, void* b, void* c, void* d, void* preference, int wanted,
                Heuristic* results, int* got);
  int (*multiply)(void* handle, void* description, const void* alpha, const void* a, void* a_layout, const void* b,
                  void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                  const Algorithm* algorithm, void* workspace, size_t size, void* stream);
  bool works = false;

  static const Library& get() {
    static const Library library;
    return library;
  }

 private:
  Library() {
    void* all = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      // The one that LibTorch has loaded, and no other.
      if ((all = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) != nullptr) break;
    }
    works = all != nullptr && find(all, "cublasLtCreate", create) && find(all, "cublasLtMatmulDescCreate", describe) &&
            find(all, "cublasLtMatmulDescSetAttribute", set) && find(all, "cublasLtMatrixLayoutCreate", lay_out) &&
            find(all, "cublasLtMatmulPreferenceCreate", prefer) &&
            find(all, "cublasLtMatmulPreferenceSetAttribute", set_preference) &&
            find(all, "cublasLtMatmulPreferenceDestroy", drop_preference) &&
            find(all, "cublasLtMatmulAlgoGetHeuristic", choose) && find(all, "cublasLtMatmul", multiply);
  }
};

// One operand as the library sees it: a row here is a column there.
struct Operand {
  const Tensor* matrix;
  bool transposed;
};

// A product of one kind, d = a b + c + bias in the library's order, ready to be started.
struct Plan {
  void *description = nullptr, *a = nullptr, *b = nullptr, *d = nullptr;
  Algorithm algorithm{};
  size_t workspace = 0;
  bool works = false;
};

// GPU, type, rows and columns of the result there, inner size, what is transposed, whether there is a bias and a summand, and
// bytes that every operand's place is a multiple of.
using Key = std::tuple<int, int32_t, int64_t, int64_t, int64_t, bool, bool, bool, bool, std::array<uint32_t, 4>>;

// Not more than 16, which the fastest kernels need: the same kernel wherever a parameter lies in its buffer.
uint32_t alignment(const void* place) {
  uint32_t bytes = 16;
  while (reinterpret_cast<uintptr_t>(place) % bytes != 0) bytes /= 2;
  return bytes;
}

std::optional<int32_t> type_of(const Tensor& x) {
  if (x.scalar_type() == at::kBFloat16) return kBf16;
  if (x.scalar_type() == at::kHalf) return kF16;
  return {};
}

void* handle_of(const Library& it, int gpu) {
  // Never freed: kernels may run until the process ends.
  thread_local auto& handles = *new std::map<int, void*>;
  auto [place, is_new] = handles.try_emplace(gpu, nullptr);
  if (is_new && it.create(&place->second) != 0) place->second = nullptr;
  return place->second;
}

// The kernel that the library takes for products like this.
Plan planned(const Library& it, void* handle, const Key& key) {
  const auto& [gpu, type, rows, columns, inner, turn_a, turn_b, biased, added, aligned] = key;
  Plan plan;
  const int32_t turns[] = {turn_a ? 1 : 0, turn_b ? 1 : 0};
  const uint64_t a_rows = turn_a ? inner : rows, b_rows = turn_b ? columns : inner;
  void* preference = nullptr;
  Heuristic found{};
  int count = 0;
  plan.works = it.describe(&plan.description, kComputeInF32, kF32) == 0 &&
               it.set(plan.description, kTransposeA, &turns[0], 4) == 0 &&
               it.set(plan.description, kTransposeB, &turns[1], 4) == 0 &&
               (!biased || it.set(plan.description, kEpilogue, &kBiasEpilogue, 4) == 0) &&
               it.lay_out(&plan.a, type, a_rows, turn_a ? rows : inner, a_rows) == 0 &&
               it.lay_out(&plan.b, type, b_rows, turn_b ? inner : columns, b_rows) == 0 &&
               it.lay_out(&plan.d, type, rows, columns, rows) == 0 && it.prefer(&preference) == 0;
  for (int i = 0; i < 4 && plan.works; i++)
    plan.works = it.set_preference(preference, kAlignmentA + i, &aligned[i], 4) == 0;
  plan.works = plan.works && it.set_preference(preference, kMostWorkspace, &kWorkspace, 8) == 0 &&
               it.set_preference(preference, kReductions, &kReduceInF32, 4) == 0 &&
               it.choose(handle, plan.description, plan.a, plan.b, plan.d, plan.d, preference, 1, &found, &count) == 0 &&
               count == 1 && found.status == 0;
  if (preference != nullptr) it.drop_preference(preference);
  plan.algorithm = found.algorithm;
  plan.workspace = found.workspace;
  return plan;
}

bool suits(const Tensor& x, const Tensor& like) {
  return x.is_contiguous() && x.scalar_type() == like.scalar_type() && x.device() == like.device() && x.numel() > 0;
}

// Whether products of tensors like this are the library's.
bool is_for_library(const Tensor& x) { return x.is_cuda() && x.numel() > 0 && type_of(x) && Library::get().works; }

// out = a b (+ out's own values or those of `summand`) (+ bias for each row of the library's). False where LibTorch has to do.
bool multiplied(Operand a, Operand b, Tensor& out, const Tensor* bias, const Tensor* summand) {
  const auto& x = *a.matrix;
  if (!is_for_library(x) || !suits(x, x) || !suits(*b.matrix, x) || !suits(out, x)) return false;
  if ((bias && !suits(*bias, x)) || (summand && !suits(*summand, x))) return false;
  const auto& it = Library::get();
  const int gpu = x.device().index();
  void* handle = handle_of(it, gpu);
  if (handle == nullptr) return false;
  const int64_t rows = out.size(1), columns = out.size(0), inner = x.numel() / rows;
  const void *left = x.const_data_ptr(), *right = b.matrix->const_data_ptr();
  void* to = out.mutable_data_ptr();
  const void* from = summand ? summand->const_data_ptr() : to;
  const Key key(gpu, *type_of(x), rows, columns, inner, a.transposed, b.transposed, bias != nullptr, summand != nullptr,
                {alignment(left), alignment(right), alignment(from), alignment(to)});
  thread_local auto& plans = *new std::map<Key, Plan>;
  auto [place, is_new] = plans.try_emplace(key);
  auto& plan = place->second;
  if (is_new) plan = planned(it, handle, key);
  if (!plan.works) return false;
  const void* added = bias ? bias->const_data_ptr() : nullptr;
  if (bias && it.set(plan.description, kBiasPointer, &added, sizeof(added)) != 0) return false;
  const auto workspace =
      plan.workspace == 0 ? Tensor() : fresh({static_cast<int64_t>(plan.workspace)}, x, at::kByte);
  void* extra = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  const float one = 1, beta = summand ? 1 : 0;
  const int status = it.multiply(handle, plan.description, &one, left, plan.a, right, plan.b, &beta, from, plan.d, to,
                                 plan.d, &plan.algorithm, extra, plan.workspace, launch_stream());
  plan.works = status == 0;
  return plan.works;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor* beside, const Tensor& into) {
  if (is_for_library(x)) {
    const c10::OptionalDeviceGuard guard(x.device());
    auto y = fresh({x.size(0), weight.size(0)}, x, x.scalar_type(), into);
    if (multiplied({&weight, true}, {&x, false}, y, &bias, beside)) return y;
  }
  auto y = at::addmm(bias, x, turned(weight));
  return beside ? y.add_(*beside) : y;
}

Tensor linear_input(const Tensor& gradient, const Tensor& weight) {
  if (is_for_library(gradient)) {
    const c10::OptionalDeviceGuard guard(gradient.device());
    auto gx = fresh({gradient.size(0), weight.size(1)}, gradient, gradient.scalar_type());
    if (multiplied({&weight, false}, {&gradient, false}, gx, nullptr, nullptr)) return gx;
  }
  return at::mm(gradient, weight);
}

void add_linear_input(Tensor& sum, const Tensor& gradient, const Tensor& weight) {
  const c10::OptionalDeviceGuard guard(gradient.device());
  if (!multiplied({&weight, false}, {&gradient, false}, sum, nullptr, &sum)) sum.addmm_(gradient, weight);
}

Tensor linear_weight(const Tensor& gradient, const Tensor& x, const Tensor& into) {
  if (is_for_library(x)) {
    const c10::OptionalDeviceGuard guard(x.device());
    auto gw = fresh({gradient.size(1), x.size(1)}, gradient, gradient.scalar_type(), into);
    if (multiplied({&x, false}, {&gradient, true}, gw, nullptr, nullptr)) return gw;
  }
  return at::mm(turned(gradient), x);
}

}  // namespace terrashard
