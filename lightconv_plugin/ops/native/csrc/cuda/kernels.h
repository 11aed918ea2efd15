// Kernels by name and case: compiled when first launched, then kept, one module a device.
#pragma once

#include <string>

#include "cuda/case.h"
#include "cuda/launch.h"

namespace lightconv::cuda {

// In the order of `kernel_sources` in kernels.cpp.
enum class Kernel : int {
  conv, grad_weight, finish, general_weights, general_conv, general_grad_dynamic, general_grad_light, glu, glu_backward,
  step, advance
};

struct Grid {
  long long blocks;
  int threads, shared_bytes;
};

// The text that NVRTC compiles: one function, `entry`.
std::string source_of(Kernel kernel, const Case& c, int threads);

// args: the kernel's own struct of args.h.
void launch(const Place& place, Kernel kernel, const Case& c, const Grid& grid, const void* args);

}  // namespace lightconv::cuda
