// Kernels for NVIDIA GPUs that are compiled where they run, by the compiler that LibTorch's packages bring along.

#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>

namespace terrashard {

// A number that a program is compiled for.
struct Define {
  const char* name;
  int64_t value;
};

// The kernels of one program on the current GPU.
class Program {
 public:
  // Compiles `source` for elements like those of `x` and its GPU, which is the current one, with at most four `defines`; once for each
  // GPU, type and set of these. Null if `x` is not on a GPU or
  // of another type than f32, bf16, f16, if there is no compiler or driver, or it refuses: callers have another way.
  static const Program* of(const char* source, const at::Tensor& x, std::initializer_list<Define> defines = {});

  // Has the GPU run the kernel `name` after what LibTorch has asked it for. An error throws.
  void launch(const char* name, unsigned blocks, unsigned threads, void** arguments) const;

  // Multiprocessors of the GPU.
  int64_t processors() const { return processors_; }

 private:
  // The kernel of this name, which the driver is asked for once.
  void* function(const char* name) const;

  void* module_ = nullptr;
  int64_t processors_ = 1;
  mutable std::mutex mutex_;
  mutable std::map<const char*, void*> functions_;
};

// Bytes that a thread of these kernels reads at once.
constexpr int64_t kVectorBytes = 16;

// Whether the elements lie side by side from a place on where such reads can begin.
bool is_vectors(const at::Tensor& x);

}  // namespace terrashard
