// A library that is opened at run time; a struct of its functions finds each by its name.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace lightconv::cuda {

struct Library {
  void* handle;
  std::string otherwise;  // begins the sentence of an error where a function is missing, "<otherwise> NAME"

  struct Symbol {
    void* address;
    template <class Function> operator Function*() const { return reinterpret_cast<Function*>(address); }
  };

  Symbol operator[](const char* name) const {
    void* address = dlsym(handle, name);
    if (address == nullptr) throw std::runtime_error("lightconv: " + otherwise + " " + name);
    return {address};
  }
};

}  // namespace lightconv::cuda
