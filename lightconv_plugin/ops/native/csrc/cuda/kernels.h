// Kernels by name and case: compiled when first launched, then kept, one module a device.
#pragma once

#include <string>

#include "cuda/case.h"
#include "cuda/launch.h"

namespace lightconv::cuda {

// In the order of `kernel_sources` in kernels.cpp.
enum class Kernel : int {
  conv, grad_weight, finish, general_weights, general_conv, general_grad_dynamic, general_grad_light, glu, glu_backward,
  step, advance, smoothed_nll, smoothed_nll_sum, smoothed_nll_backward
};

struct Grid {
  long long blocks;
  int threads, shared_bytes;
};

// What a profiler shows: the operator, the pass, the type, and the case's numbers and flags that are not 0, such as
// lightconv_dynamic_conv_forward_bf16_K31_P30_R64_H16_T64_softmax_aligned (P: padding_l, T: positions of a block).
std::string name_of(Kernel kernel, const Case& c);

// The text that NVRTC compiles: one function, `name_of` its name.
std::string source_of(Kernel kernel, const Case& c, int threads);

// args: the kernel's own struct of args.h.
void launch(const Place& place, Kernel kernel, const Case& c, const Grid& grid, const void* args);

}  // namespace lightconv::cuda
