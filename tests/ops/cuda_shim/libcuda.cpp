// Replaces libcuda.so.1: loads the images that nvrtc.cpp makes, runs each launch to its end, and records the calls.
// Images of a real GPU are accepted too; launching them does nothing.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Launch {
  void* context;
  void* stream;
  unsigned int blocks, threads, shared_bytes;
};

int contexts[128];  // the address of element i is the context of device i: an sm_90 if i < 50, otherwise an sm_i
std::map<void*, int> granted;  // opt-in shared memory of each kernel, in bytes
int modules = 0;
int nothing;  // its address stands for a module of a real GPU
int next_error = 0, next_load_error = 0;
bool capturing = false;         // a thread is capturing a graph in the mode "global"
thread_local int capture_mode;  // 0 global, 1 thread-local, 2 relaxed
std::vector<std::string> functions;
thread_local std::vector<void*> stack;  // each thread has its own current context
std::mutex running;                     // one kernel, or one load, at a time
std::vector<Launch> launches;

}  // namespace

extern "C" {

void shim_fail_next_launch(int error) { next_error = error; }
void shim_fail_next_load(int error) { next_load_error = error; }
void shim_capture(int on) { capturing = on != 0; }
int shim_capture_mode() { return capture_mode; }
// Names of the kernels that cuModuleGetFunction was called for, in order.
int shim_functions() { return static_cast<int>(functions.size()); }
const char* shim_function(int index) { return functions[index].c_str(); }
int shim_modules() { return modules; }
int shim_context_depth() { return static_cast<int>(stack.size()); }
int shim_launches() { return static_cast<int>(launches.size()); }
void shim_forget() { launches.clear(); }
// Writes device, stream, blocks, threads and bytes of shared memory of a launch to `facts`.
void shim_launch(int index, long long* facts) {
  const Launch& launch = launches[index];
  facts[0] = static_cast<int*>(launch.context) - contexts, facts[1] = reinterpret_cast<long long>(launch.stream);
  facts[2] = launch.blocks, facts[3] = launch.threads, facts[4] = launch.shared_bytes;
}

int cuInit(unsigned int) { return 0; }
int cuDeviceGet(int* device, int ordinal) { return ordinal < 128 ? (*device = ordinal, 0) : 101; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = device < 50 ? 90 : device;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &contexts[device], 0; }
int cuCtxGetCurrent(void** context) { return *context = stack.empty() ? nullptr : stack.back(), 0; }
int cuCtxPushCurrent_v2(void* context) { return stack.push_back(context), 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = stack.back(), stack.pop_back(), 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), 0; }
int cuGetErrorName(int result, const char** name) {
  *name = result == 101   ? "CUDA_ERROR_INVALID_DEVICE"
          : result == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == 900 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                          : "CUDA_ERROR_UNKNOWN";
  return 0;
}

int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard<std::mutex> lock(running);
  if (capturing && capture_mode != 2) return 900;
  if (next_load_error != 0) return std::exchange(next_load_error, 0);
  ++modules;
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 200;
  const size_t size = header->e_shoff + static_cast<size_t>(header->e_shnum) * header->e_shentsize;
  if (header->e_machine == EM_CUDA) return *module = &nothing, 0;
  const int file = memfd_create("module", 0);  // a file in memory, which dlopen opens by its path
  const bool written = file >= 0 && write(file, image, size) == static_cast<ssize_t>(size);
  *module = written ? dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  return *module == nullptr ? 200 : 0;  // the file stays open, so that no other module gets its path
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::lock_guard<std::mutex> lock(running);
  functions.push_back(name);
  *function = module == &nothing ? module : dlsym(module, ("shim_run_" + functions.back()).c_str());
  return *function == nullptr ? 500 : 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  const std::lock_guard<std::mutex> lock(running);
  return attribute == 8 ? (granted[function] = value, 0) : 1;
}

int cuLaunchKernel(void* function, unsigned int x, unsigned int, unsigned int, unsigned int threads, unsigned int,
                   unsigned int, unsigned int shared_bytes, void* stream_, void** parameters, void**) {
  const std::lock_guard<std::mutex> lock(running);
  if (next_error != 0) {
    const int error = next_error;
    next_error = 0;
    return error;
  }
  if (x == 0 || threads == 0 || threads > 1024) return 1;
  if (function == &nothing) return 0;
  if (shared_bytes > 48 * 1024 && granted[function] < static_cast<int>(shared_bytes)) return 1;
  launches.push_back({stack.back(), stream_, x, threads, shared_bytes});
  reinterpret_cast<void (*)(unsigned int, int, int, const void*)>(function)(x, threads, shared_bytes, parameters[0]);
  return 0;
}
}
