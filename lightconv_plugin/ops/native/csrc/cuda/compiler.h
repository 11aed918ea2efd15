// Compiles CUDA C++ with NVRTC for a GPU. The results are cached on disk for all processes.
#pragma once

#include <atomic>
#include <string>

namespace lightconv::cuda {

// Paths, set by Python after the library is loaded.
struct Settings {
  std::string sources;  // the folder of these files
  std::string nvrtc;    // libnvrtc, or a library that depends on it
  std::string cache;    // folder of kernels compiled from these files
};

void configure(const Settings& settings);
extern std::atomic<int> configurations;  // calls of configure so far; kernels from before the last are not used again

// Returns the image (cubin or PTX) of `source` for a compute capability such as 90. Throws std::runtime_error if
// configure was not called, if libnvrtc cannot be used, or, with the first line of the error, if `source` does not
// compile.
std::string compile(const std::string& source, int capability);

}  // namespace lightconv::cuda
