// Calls whose kernels the GPU starts by itself: what many small kernels cost the host, a graph of them costs once.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>

namespace terrashard {

// A call that fills `out` from `inputs` and `settings` alone, by kernels alone: nothing in it waits for the GPU or reads of it.
struct Task {
  // Which call it is, with what it knows beside tensors.
  int64_t kind;
  std::array<int64_t, 6> settings;
  // Null where there is none. The first `moving` may lie in other places each time, and the last of them always does.
  c10::SmallVector<const at::Tensor*, 24> inputs;
  size_t moving;
  // Of the inputs, the first parameter, by whose place calls for one layer are known.
  size_t layer;
  at::Tensor** out;
  size_t outs;
  // Which of the outputs are wanted; null for all.
  const bool* wanted;
};

// Gives out what a task does. It gets the moving inputs, and for each output a tensor that is undefined or one in whose memory that
// output had best be.
using Body = c10::function_ref<void(const at::Tensor* const* moving, const at::Tensor* into)>;

// Runs `body`; or, where this call has come before with inputs in the same places, the graph that was made of it. What is given out is
// never written again before the caller has let go of it.
void by_graph(const Task& task, Body body);

// The stream that kernels are started on in this thread: LibTorch's default one, or the one that a graph is made of.
void* launch_stream();

// How many bytes of a GPU this process may take, where that is less than there are.
void limit_graphs(int64_t bytes);

}  // namespace terrashard
