// Kernels for NVIDIA GPUs that are compiled where they run, by the compiler that LibTorch's packages bring along.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrashard {

// The kernels of one program on the current GPU.
class Program {
 public:
  // Compiles `source` with `options` for the current GPU, once for each GPU and set of options. Null if there is no compiler or
  // driver, or it refuses: callers have another way.
  static const Program* of(const char* source, const std::vector<std::string>& options);

  // Has the GPU run the kernel `name` after what LibTorch has asked it for. An error throws.
  void launch(const char* name, unsigned blocks, unsigned threads, void** arguments) const;

  // Multiprocessors of the GPU.
  int64_t processors() const { return processors_; }

 private:
  void* module_ = nullptr;
  int64_t processors_ = 1;
};

}  // namespace terrashard
