// Functions of a library that is opened at run time.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace lightconv::cuda {

// Points `function` at the library's symbol; `otherwise` begins the sentence of an error, "<otherwise> NAME".
template <class Function>
void find_symbol(void* library, const char* name, const std::string& otherwise, Function& function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error("lightconv: " + otherwise + " " + name);
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace lightconv::cuda
