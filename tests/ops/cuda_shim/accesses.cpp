// Conflicts between the threads of a launch: two accesses to one byte, at least one of them a write, that no barrier keeps
// in order. Kernels compiled with -fsanitize=thread call the functions at the end of this file before each access; the
// library that GCC has for these is not used.
//
// In order are: one thread's accesses; those of one block on two sides of a __syncthreads; those of one warp on two sides
// of a __syncwarp. A shuffle keeps nothing in order, nor is one block in order with another. Atomics do not conflict with
// each other.
#include "accesses.h"

#include <cstdint>
#include <string>
#include <unordered_map>

#include "scheduler.h"

namespace shim {
namespace {

struct Access {
  Thread by;
  bool atomic = false;
};

// The last write, and two reads that differ as far as they can: by block, by warp, or by thread.
struct Byte {
  Access write, reads[2];
};

struct Range {
  const void* start;
  size_t bytes;
  bool has(const void* at) const { return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(start) < bytes; }
};

Thread now;
Range stack_of_now, shared_of_block;
std::unordered_map<uintptr_t, Byte> of_device, of_block;
long long count = 0;
std::string first;

bool in_order(const Access& before, const Access& after) {
  const Thread &a = before.by, &b = after.by;
  if (a.block == -1) return true;
  if (a.block != b.block) return false;
  return a.thread == b.thread || a.barriers < b.barriers || (a.thread / 32 == b.thread / 32 && a.syncs < b.syncs);
}

int distance(const Access& a, const Access& b) {
  return a.by.block != b.by.block ? 3 : a.by.thread / 32 != b.by.thread / 32 ? 2 : a.by.thread != b.by.thread;
}

void compare(const Access& before, const char* did, const Access& after, const char* does) {
  if (in_order(before, after) || (before.atomic && after.atomic) || count++ > 0) return;
  const auto name = [](const Access& access) {
    return "thread " + std::to_string(access.by.thread) + " of block " + std::to_string(access.by.block) + " ";
  };
  first = name(after) + does + " what " + name(before) + did;
}

void access(const void* at, size_t bytes, bool is_write, bool atomic = false) {
  if (now.block == -1 || stack_of_now.has(at)) return;
  auto& memory = shared_of_block.has(at) ? of_block : of_device;
  const auto start = reinterpret_cast<uintptr_t>(at);
  const Access access{now, atomic};
  for (uintptr_t i = start; i < start + bytes; ++i) {
    Byte& byte = memory[i];
    compare(byte.write, "wrote", access, is_write ? "writes" : "reads");
    if (is_write) {
      for (const Access& read : byte.reads) compare(read, "read", access, "writes");
      byte = {access, {}};
    } else if (in_order(byte.reads[0], access)) {
      byte.reads[0] = access;
    } else if (in_order(byte.reads[1], access) || distance(byte.reads[0], access) > distance(byte.reads[0], byte.reads[1])) {
      byte.reads[1] = access;
    }
  }
}

}  // namespace

void watch_block(const void* shared, size_t bytes) { shared_of_block = {shared, bytes}, of_block.clear(); }
void watch(const Thread& thread, const void* stack, size_t bytes) { now = thread, stack_of_now = {stack, bytes}; }
void watch_nobody() { now.block = -1; }
void atomic(const void* at, size_t bytes) { access(at, bytes, true, true); }

const char* conflicts() {
  of_device.clear();
  if (count == 0) return nullptr;
  first = "threads use the same memory without a barrier between, " + std::to_string(count) + " bytes, the first: " + first;
  return first.c_str();
}

}  // namespace shim

using shim::access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define SHIM_SIZE(n) \
  void __tsan_read##n(void* at) { access(at, n, false); } \
  void __tsan_write##n(void* at) { access(at, n, true); } \
  void __tsan_unaligned_read##n(void* at) { access(at, n, false); } \
  void __tsan_unaligned_write##n(void* at) { access(at, n, true); }
SHIM_SIZE(1)
SHIM_SIZE(2)
SHIM_SIZE(4)
SHIM_SIZE(8)
SHIM_SIZE(16)
void __tsan_read_range(void* at, size_t bytes) { access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { access(at, bytes, true); }
}
