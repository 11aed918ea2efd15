// Kernels by name and Case. A kernel is compiled when it is first launched and then kept, as one module per device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "cuda/case.h"

namespace lightconv::cuda {

// A function template over Case in cuda/<file>.cuh and the struct of its arguments. `title` is its name in profilers:
// an initial "conv" becomes light_conv or dynamic_conv, and a final _ is followed by the pass, forward or grad_x.
struct Kernel {
  const char *name, *file, *args, *title;
};

// The device and stream of a launch, and scratch memory. It is freed when the call returns, which is safe because all
// work is on one stream.
struct Place {
  int device;
  void* stream;
  std::function<void*(size_t bytes)> scratch;
};

struct Grid {
  long long blocks;
  int threads, shared_bytes;
};

// Returns the name that profilers show: the operator, the pass, the type, and the case's numbers and flags that are not
// 0, such as lightconv_dynamic_conv_forward_bf16_K31_R64_H16_T64_softmax_aligned_mma (T: positions of a block).
std::string name_of(const Kernel& kernel, const Case& c);

// Returns the source text that NVRTC compiles: one function, called name_of(kernel, c).
std::string source_of(const Kernel& kernel, const Case& c, int threads);

// Between gather(true) and gather(false), launches are recorded but not made, so results are uninitialised memory.
// gather(false) compiles the recorded kernels, on as many threads as there are processors, and returns their number.
int64_t gather(bool begin);

// args: the struct named by kernel.args. The compiled kernel is kept until the process ends.
void launch(const Place& place, const Kernel& kernel, const Case& c, const Grid& grid, const void* args);

inline bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

inline long long blocks_for(long long items, long long per_block) { return (items + per_block - 1) / per_block; }

}  // namespace lightconv::cuda
