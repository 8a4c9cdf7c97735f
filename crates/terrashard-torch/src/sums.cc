// LibTorch's own sum of many rows in 16 bits reaches a fraction of a GPU's bandwidth, and costs the host as much as three kernels
// of ours, of which a step of a large model has hundreds.

#include "sums.h"

#include "compiled.h"
#include "sums_kernels.h"
#include "views.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <vector>

namespace terrashard {
namespace {

using at::Tensor;

// Threads of a block.
constexpr int64_t kThreads = 256;
// Rows that a thread takes at least, where there are so many.
constexpr int64_t kRows = 8;
// Blocks for each multiprocessor at most.
constexpr int64_t kBlocks = 4;
// Groups of columns at most.
constexpr int64_t kGroups = 1024;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// For each group of columns the number of blocks that are done, which is nought between kernels. Never freed: a thread may end
// after its device has. One set for each thread and GPU, on whose one stream kernels follow one another.
Tensor& counters(const Tensor& x) {
  thread_local auto& kept = *new std::vector<Tensor>;
  for (auto& counters : kept) {
    if (counters.device() == x.device()) return counters;
  }
  return kept.emplace_back(at::zeros({kGroups}, x.options().dtype(at::kInt)));
}

}  // namespace

Tensor sum_of_rows(const Tensor& x, const Tensor& into) {
  const c10::OptionalDeviceGuard guard(x.device());
  int64_t rows = x.size(0), columns = x.size(1);
  const auto width = kVectorBytes / x.element_size();
  if (x.numel() == 0 || columns % width != 0 || !is_vectors(x)) return x.sum(0);
  int64_t lanes = 1;
  while (lanes < 32 && columns / width % (lanes * 2) == 0) lanes *= 2;
  const auto groups = columns / width / lanes;
  const auto* kernels = groups > kGroups ? nullptr : Program::of(kSumsKernels, x, {{"THREADS", kThreads}, {"LANES", lanes}});
  if (kernels == nullptr) return x.sum(0);
  const auto most = std::max<int64_t>(1, kernels->processors() * kBlocks / groups);
  const auto parts = std::min(ceiling(rows, kThreads / lanes * kRows), most);
  auto sum = fresh({columns}, x, x.scalar_type(), into);
  auto sums = parts > 1 ? fresh({parts, columns}, x, at::kFloat) : Tensor();
  const void* in = x.const_data_ptr();
  void *out = sum.mutable_data_ptr(), *partial = parts > 1 ? sums.mutable_data_ptr() : nullptr;
  void* done = counters(x).mutable_data_ptr();
  void* arguments[] = {&in, &out, &partial, &done, &rows, &columns};
  kernels->launch("sum_of_rows", static_cast<unsigned>(groups * parts), kThreads, arguments);
  return sum;
}

}  // namespace terrashard
