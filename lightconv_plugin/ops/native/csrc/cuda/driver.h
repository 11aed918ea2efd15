// The CUDA driver, opened at run time: no CUDA header or library is needed to build, and none to load this library.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace lightconv::cuda {

// A library that is opened at run time; a struct of its functions finds each by its name.
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

// The parts of the driver's interface that are used, with its own names; handles are void*, results 0 for success.
struct Driver {
  Library library;
  int (*cuInit)(unsigned int flags) = library["cuInit"];
  int (*cuDeviceGet)(int* device, int ordinal) = library["cuDeviceGet"];
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device) = library["cuDeviceGetAttribute"];
  int (*cuDevicePrimaryCtxRetain)(void** context, int device) = library["cuDevicePrimaryCtxRetain"];
  int (*cuCtxGetCurrent)(void** context) = library["cuCtxGetCurrent"];
  int (*cuCtxPushCurrent_v2)(void* context) = library["cuCtxPushCurrent_v2"];
  int (*cuCtxPopCurrent_v2)(void** context) = library["cuCtxPopCurrent_v2"];
  int (*cuModuleLoadData)(void** module, const void* image) = library["cuModuleLoadData"];
  int (*cuModuleGetFunction)(void** function, void* module, const char* name) = library["cuModuleGetFunction"];
  int (*cuFuncSetAttribute)(void* function, int attribute, int value) = library["cuFuncSetAttribute"];
  int (*cuLaunchKernel)(void* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        void* stream, void** parameters, void** extra) = library["cuLaunchKernel"];
  int (*cuThreadExchangeStreamCaptureMode)(int* mode) = library["cuThreadExchangeStreamCaptureMode"];
  int (*cuGetErrorName)(int result, const char** name) = library["cuGetErrorName"];
};

// Throws std::runtime_error: there is no driver, or it is too old.
const Driver& driver();

// Throws std::runtime_error with CUDA's name of the error unless result is 0.
void check(int result, const char* call);

struct Device {
  void* context;   // the primary one, which torch uses too
  int capability;  // 90 for sm_90
};

const Device& device(int index);

// Makes a device's context current, for as long as this lives.
class Current {
 public:
  explicit Current(const Device& device) {
    void* context = nullptr;
    check(driver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    if (context == device.context) return;
    check(driver().cuCtxPushCurrent_v2(device.context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    void* context = nullptr;
    if (pushed_) driver().cuCtxPopCurrent_v2(&context);
  }
  Current(const Current&) = delete;

 private:
  bool pushed_ = false;
};

// While this lives, the thread may do what CUDA forbids during the capture of a graph and what no graph needs to replay:
// load a module. Captures of other threads are not disturbed.
class Uncaptured {
 public:
  Uncaptured() { check(driver().cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode"); }
  ~Uncaptured() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  Uncaptured(const Uncaptured&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace lightconv::cuda
