// Kernels by name and case: compiled when first launched, then kept, one module a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "cuda/case.h"

namespace lightconv::cuda {

// A template of a Case in cuda/<file>.cuh and the struct of its arguments. `title` names it in a profiler's list: "conv"
// becomes light_conv or dynamic_conv, and a last _ is followed by the pass, forward or grad_x.
struct Kernel {
  const char *name, *file, *args, *title;
};

// Where work goes, and memory that lives until the call returns (on one stream that is enough).
struct Place {
  int device;
  void* stream;
  std::function<void*(size_t bytes)> scratch;
};

struct Grid {
  long long blocks;
  int threads, shared_bytes;
};

// What a profiler shows: the operator, the pass, the type, and the case's numbers and flags that are not 0, such as
// lightconv_dynamic_conv_forward_bf16_K31_R64_H16_T64_softmax_aligned_mma (T: positions of a block).
std::string name_of(const Kernel& kernel, const Case& c);

// The text that NVRTC compiles: one function, `name_of` its name.
std::string source_of(const Kernel& kernel, const Case& c, int threads);

// Between gather(true) and gather(false) launches are noted and not made, their results are whatever memory held; then
// all that was noted is compiled, on as many threads as there are processors. Gives the number of kernels.
int64_t gather(bool begin);

// args: the kernel's own struct. The kernel itself lives as long as the process.
void launch(const Place& place, const Kernel& kernel, const Case& c, const Grid& grid, const void* args);

inline bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

inline long long blocks_for(long long items, long long per_block) { return (items + per_block - 1) / per_block; }

}  // namespace lightconv::cuda
