// What a kernel sees of the machine that runs it: scheduler.cpp, compiled once for all kernels.
#pragma once

#include <cstddef>

struct Index {
  unsigned int x = 0, y = 0, z = 0;
};

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char shared[];  // of the block that runs
}

namespace shim {

// Runs a launch, entry(arguments) in each thread. $SHIM_ORDER is the order of blocks, warps and lanes: 0 or unset rising,
// 1 falling, else shuffled, anew at every barrier, from this seed.
void run(unsigned int blocks, int threads, int shared_bytes, void (*entry)(const void*), const void* arguments);

void sync_block();
void sync_warp();
void atomic(const void* at, size_t bytes);  // says that an atomic operation follows

// A thread's copies under way, in groups. None is made before it is waited for: next_copy gives what must be made before
// only the last `left` groups are under way, and false where that is all.
struct Copy {
  void* to;
  const void* from;
  int bytes;
};
void copy_later(const Copy& copy);
void finish_group();
bool next_copy(int left, Copy& copy);

// Shows some bytes, at most 32, to the warp and waits for all its lanes; `read`, given what `show` returned, gives any
// lane's.
int show(const void* mine, size_t bytes);
void read(int lane, int shown, void* to, size_t bytes);

}  // namespace shim
