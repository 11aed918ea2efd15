// CUDA C++ to machine code by NVRTC, for the GPU at hand, kept on disk for all processes.
#pragma once

#include <atomic>
#include <string>

namespace lightconv::cuda {

// Where things are, said by Python once after the library is loaded.
struct Settings {
  std::string sources;  // the folder of these files
  std::string nvrtc;    // libnvrtc, or a library that depends on it
  std::string cache;    // folder of kernels compiled from these files
};

void configure(const Settings& settings);
extern std::atomic<int> configurations;  // made so far: kernels of the one before are compiled anew

// The image, cubin or PTX, of `source` for a compute capability such as 90. Throws std::runtime_error: not configured,
// libnvrtc cannot be used, or its first error line.
std::string compile(const std::string& source, int capability);

}  // namespace lightconv::cuda
