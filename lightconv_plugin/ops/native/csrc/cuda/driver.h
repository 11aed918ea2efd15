// The CUDA driver, opened at run time: neither building nor loading this library needs a CUDA header or library.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace lightconv::cuda {

// A library opened at run time. A struct with a member for each function looks these up by name.
struct Library {
  void* handle;
  std::string otherwise;  // start of the error message if a function is missing: "<otherwise> NAME"

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

// The functions of the driver that are used, under their CUDA names. Handles are void*; a result of 0 means success.
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

// Throws std::runtime_error if there is no driver or it is too old.
const Driver& driver();

// Throws std::runtime_error with CUDA's name of the error unless result is 0.
void check(int result, const char* call);

struct Device {
  void* context;   // the primary one, which torch uses too
  int capability;  // 90 for sm_90
};

const Device& device(int index);

// Makes a device's context current as long as this object lives.
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

// While this object lives, its thread may load a module, which CUDA otherwise forbids during the capture of a graph. A
// load need not be replayed with the graph. Captures of other threads are not disturbed.
class Uncaptured {
 public:
  Uncaptured() { check(driver().cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode"); }
  ~Uncaptured() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  Uncaptured(const Uncaptured&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace lightconv::cuda
