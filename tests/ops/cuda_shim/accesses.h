// What accesses.cpp has to be told; see there.
#pragma once

#include <cstddef>

extern "C" {

// A thread of a launch, and the __syncthreads and __syncwarp that it has passed.
struct ShimThread {
  int block, thread, barriers, syncs;
};
struct ShimRange {
  const void* start;
  size_t bytes;
};

void shim_watch_block(ShimRange shared);
void shim_watch(ShimThread thread, ShimRange stack, ShimRange own);
void shim_watch_nobody();
void shim_watch_end();  // of a launch
void shim_watch_atomic(const void* at, size_t bytes);
}
