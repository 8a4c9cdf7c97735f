// The compiler and the driver are opened at run time, since this is built without CUDA: the few functions that are needed are
// declared here, as NVIDIA documents them for NVRTC and the driver's interface.

#include "compiled.h"

#include "compiled_types.h"
#include "graph.h"
#include "library.h"

#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace terrashard {
namespace {

// Defines of a program at most.
constexpr size_t kDefines = 4;

enum Attribute { kProcessors = 16, kMajor = 75, kMinor = 76 };

// What is called of both libraries; all there, or `works` is false.
struct Libraries {
  int (*create)(void** program, const char* source, const char* name, int, const char* const*, const char* const*);
  int (*compile)(void* program, int count, const char* const* options);
  int (*destroy)(void** program);
  int (*code_size)(void* program, size_t* size);
  int (*code)(void* program, char* code);
  int (*device)(int* device);
  int (*attribute)(int* value, int attribute, int device);
  int (*load)(void** module, const void* image);
  int (*function)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream,
                void** arguments, void** extra);
  bool works = false;

  static const Libraries& get() {
    static const Libraries libraries;
    return libraries;
  }

 private:
  Libraries() {
    void* compiler = opened({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
    void* driver = opened({"libcuda.so.1"});
    if (compiler == nullptr || driver == nullptr) return;
    works = find(compiler, "nvrtcCreateProgram", create) && find(compiler, "nvrtcCompileProgram", compile) &&
            find(compiler, "nvrtcDestroyProgram", destroy) && find(compiler, "nvrtcGetCUBINSize", code_size) &&
            find(compiler, "nvrtcGetCUBIN", code) && find(driver, "cuCtxGetDevice", device) &&
            find(driver, "cuDeviceGetAttribute", attribute) && find(driver, "cuModuleLoadData", load) &&
            find(driver, "cuModuleGetFunction", function) && find(driver, "cuLaunchKernel", launch);
  }

  static void* opened(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (void* library = dlopen(name, RTLD_NOW)) return library;
    }
    return nullptr;
  }
};

// 0, 1, 2 for the types that kernels know.
std::optional<int> type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return 0;
    case at::kBFloat16:
      return 1;
    case at::kHalf:
      return 2;
    default:
      return {};
  }
}

// The machine code for the GPU `device`, empty if the compiler refuses.
std::string compiled(const Libraries& it, const std::string& source, std::vector<std::string> options, int device) {
  int major = 0, minor = 0;
  if (it.attribute(&major, kMajor, device) != 0 || it.attribute(&minor, kMinor, device) != 0) return {};
  options.push_back("--std=c++17");
  options.push_back("--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor));
  std::vector<const char*> texts;
  for (const auto& option : options) texts.push_back(option.c_str());
  void* program = nullptr;
  if (it.create(&program, source.c_str(), "terrashard.cu", 0, nullptr, nullptr) != 0) return {};
  std::string code;
  size_t size = 0;
  if (it.compile(program, static_cast<int>(texts.size()), texts.data()) == 0 && it.code_size(program, &size) == 0) {
    code.resize(size);
    if (it.code(program, code.data()) != 0) code.clear();
  }
  it.destroy(&program);
  return code;
}

}  // namespace

bool is_vectors(const at::Tensor& x) {
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kVectorBytes == 0;
}

const Program* Program::of(const char* source, const at::Tensor& x, std::initializer_list<Define> defines) {
  const auto& it = Libraries::get();
  const auto type = type_of(x);
  int device = 0;
  if (!x.is_cuda() || !type || !it.works || it.device(&device) != 0) return nullptr;
  // The sources and names are texts of this program, so that their places tell them apart.
  using Key = std::tuple<const char*, int, int, std::array<std::pair<const char*, int64_t>, kDefines>>;
  Key key(source, *type, device, {});
  TORCH_CHECK(defines.size() <= kDefines, "a program has at most ", kDefines, " defines");
  std::transform(defines.begin(), defines.end(), std::get<3>(key).begin(),
                 [](const Define& define) { return std::pair(define.name, define.value); });
  static std::mutex mutex;
  // Never freed: kernels may run until the process ends.
  static auto& programs = *new std::map<Key, std::unique_ptr<Program>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto [place, is_new] = programs.try_emplace(key);
  if (is_new) {
    std::vector<std::string> options{"-DTYPE=" + std::to_string(*type)};
    for (const auto& define : defines) options.push_back(std::string("-D") + define.name + "=" + std::to_string(define.value));
    const auto code = compiled(it, std::string(kTypes) + source, std::move(options), device);
    auto program = std::make_unique<Program>();
    int processors = 0;
    if (!code.empty() && it.load(&program->module_, code.data()) == 0 &&
        it.attribute(&processors, kProcessors, device) == 0) {
      program->processors_ = processors;
      place->second = std::move(program);
    }
  }
  return place->second.get();
}

void* Program::function(const char* name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto [place, is_new] = functions_.try_emplace(name);
  if (is_new && Libraries::get().function(&place->second, module_, name) != 0) {
    functions_.erase(place);
    TORCH_CHECK(false, "there is no kernel ", name);
  }
  return place->second;
}

void Program::launch(const char* name, unsigned blocks, unsigned threads, void** arguments) const {
  const int error =
      Libraries::get().launch(function(name), blocks, 1, 1, threads, 1, 1, 0, launch_stream(), arguments, nullptr);
  TORCH_CHECK(error == 0, "the driver cannot start ", name, ": error ", error);
}

}  // namespace terrashard
