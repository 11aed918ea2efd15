#include "cuda/driver.h"

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#ifndef LIGHTCONV_LIBCUDA
#define LIGHTCONV_LIBCUDA "libcuda.so.1"
#endif

namespace lightconv::cuda {
namespace {

const int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

Library open_driver() {
  void* library = dlopen(LIGHTCONV_LIBCUDA, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error("lightconv: no NVIDIA driver: libcuda.so.1 is not there");
  return {library, "the NVIDIA driver is too old: it has no"};
}

}  // namespace

const Driver& driver() {
  static const Driver opened{open_driver()};
  return opened;
}

void check(int result, const char* call) {
  if (result == 0) return;
  const char* name = nullptr;
  if (driver().cuGetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
  throw std::runtime_error(std::string("lightconv: ") + call + " failed with " + name + " (" + std::to_string(result) +
                           ")");
}

const Device& device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> devices;  // references to elements of a map stay valid
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = devices.find(index);
  if (known != devices.end()) return known->second;
  const Driver& cuda = driver();
  int handle = 0, major = 0, minor = 0;
  Device found{};
  check(cuda.cuInit(0), "cuInit");
  check(cuda.cuDeviceGet(&handle, index), "cuDeviceGet");
  check(cuda.cuDeviceGetAttribute(&major, CAPABILITY_MAJOR, handle), "cuDeviceGetAttribute");
  check(cuda.cuDeviceGetAttribute(&minor, CAPABILITY_MINOR, handle), "cuDeviceGetAttribute");
  check(cuda.cuDevicePrimaryCtxRetain(&found.context, handle), "cuDevicePrimaryCtxRetain");
  found.capability = major * 10 + minor;
  return devices.emplace(index, found).first->second;
}

}  // namespace lightconv::cuda
