// The interface between a kernel and the emulated GPU, scheduler.cpp, which is compiled once for all kernels.
#pragma once

#include <cstddef>

struct Index {
  unsigned int x = 0, y = 0, z = 0;
};

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char shared[];  // shared memory of the running block
}

namespace shim {

// Runs a launch: entry(arguments) in each thread. $SHIM_ORDER is the order of blocks, warps and lanes: 0 or unset is
// rising, 1 is falling, and any other number is the seed of an order that is shuffled again at every barrier.
void run(unsigned int blocks, int threads, int shared_bytes, void (*entry)(const void*), const void* arguments);

void sync_block();
void sync_warp();
void atomic(const void* at, size_t bytes);  // reports that an atomic operation follows

// A thread's pending asynchronous copies, in groups. A copy is not made before the thread waits for it: next_copy
// returns the next copy to make, or false if only copies of the last `left` groups are pending.
struct Copy {
  void* to;
  const void* from;
  int bytes;
};
void copy_later(const Copy& copy);
void finish_group();
bool next_copy(int left, Copy& copy);

// `show` shows at most 32 bytes to the warp and waits for all its lanes. `read`, given the result of `show`, copies the
// bytes that a lane showed.
int show(const void* mine, size_t bytes);
void read(int lane, int shown, void* to, size_t bytes);

}  // namespace shim
