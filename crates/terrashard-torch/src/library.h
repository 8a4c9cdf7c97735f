// Functions of libraries that are opened at run time.

#pragma once

#include <dlfcn.h>

namespace terrashard {

// Whether `library` has a function of this name, which `function` is then.
template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace terrashard
