// Conflicts between the threads of a launch: two accesses to one byte, at least one of them a write, that no barrier keeps
// in order. Kernels are compiled with -fsanitize=thread, which calls the functions at the end of this file before each
// access; the library that those belong to is not used.
//
// In order are: one thread's accesses; those of one block on two sides of a __syncthreads; those of one warp on two sides
// of a __syncwarp. A shuffle keeps nothing in order, nor is one block in order with another. Atomics do not conflict with
// each other.
#include "accesses.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

namespace {

struct Access {
  ShimThread by{-1, 0, 0, 0};
  bool atomic = false;
};

// The last write, and two reads that differ as far as they can: by block, by warp, or by thread.
struct Byte {
  Access write, reads[2];
};

ShimThread now{-1, 0, 0, 0};
ShimRange stack, own, shared;
std::unordered_map<uintptr_t, Byte> of_device, of_block;
long long conflicts = 0;
char first[200];

bool in_order(const Access& before, const Access& after) {
  const ShimThread &a = before.by, &b = after.by;
  if (a.block == -1) return true;
  if (a.block != b.block) return false;
  return a.thread == b.thread || a.barriers < b.barriers || (a.thread / 32 == b.thread / 32 && a.syncs < b.syncs);
}

int distance(const Access& a, const Access& b) {
  return a.by.block != b.by.block ? 3 : a.by.thread / 32 != b.by.thread / 32 ? 2 : a.by.thread != b.by.thread;
}

void compare(const Access& before, bool was_write, const Access& after, bool is_write, uintptr_t at) {
  if (in_order(before, after) || (before.atomic && after.atomic)) return;
  if (conflicts++ == 0)
    std::snprintf(first, sizeof first, "thread %d of block %d %s what thread %d of block %d %s, at %#zx", after.by.thread,
                  after.by.block, is_write ? "writes" : "reads", before.by.thread, before.by.block, was_write ? "wrote" : "read",
                  static_cast<size_t>(at));
}

bool is_in(const void* at, const ShimRange& range) {
  return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(range.start) < range.bytes;
}

void access(const void* at, size_t bytes, bool is_write, bool atomic = false) {
  if (now.block == -1 || is_in(at, stack) || is_in(at, own)) return;
  auto& memory = is_in(at, shared) ? of_block : of_device;
  const auto start = reinterpret_cast<uintptr_t>(at);
  const Access access{now, atomic};
  for (uintptr_t i = start; i < start + bytes; ++i) {
    Byte& byte = memory[i];
    compare(byte.write, true, access, is_write, i);
    if (is_write) {
      for (const Access& read : byte.reads) compare(read, false, access, true, i);
      byte = {access, {}};
    } else if (in_order(byte.reads[0], access)) {
      byte.reads[0] = access;
    } else if (in_order(byte.reads[1], access) || distance(byte.reads[0], access) > distance(byte.reads[0], byte.reads[1])) {
      byte.reads[1] = access;
    }
  }
}

}  // namespace

extern "C" {

void shim_watch_block(ShimRange of) { shared = of, of_block.clear(); }
void shim_watch(ShimThread thread, ShimRange its_stack, ShimRange of_shim) { now = thread, stack = its_stack, own = of_shim; }
void shim_watch_nobody() { now.block = -1; }
void shim_watch_end() {
  of_device.clear();
  if (conflicts == 0) return;
  std::fprintf(stderr, "cuda shim: %lld bytes are used by two threads at once, the first: %s\n", conflicts, first);
  std::abort();
}

void shim_watch_atomic(const void* at, size_t bytes) { access(at, bytes, true, true); }

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
