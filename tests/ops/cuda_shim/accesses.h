// What accesses.cpp has to be told by the scheduler; see there.
#pragma once

#include <cstddef>

namespace shim {

// A thread of a launch, and how many __syncthreads and __syncwarp it has passed.
struct Thread {
  int block = -1, thread = 0, barriers = 0, syncs = 0;
};

void watch_block(const void* shared, size_t bytes);
void watch(const Thread& thread, const void* stack, size_t bytes);  // until watch_nobody
void watch_nobody();
const char* conflicts();  // of the launch that has ended, in words; null: none

}  // namespace shim
