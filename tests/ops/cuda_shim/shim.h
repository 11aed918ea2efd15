// Runs a CUDA kernel on one CPU thread: a fiber for each thread of a block, block after block, in an order that can be
// chosen. What a fiber does between two barriers happens at once. Coalescing and register limits are not seen here. What is
// seen: barriers that not all threads reach, shuffles of lanes that have left, shared memory read before it is written (it
// starts as NaN) or written beyond what was asked for. checks.h lets AddressSanitizer and accesses.cpp see more.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "checks.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

#define LIGHTCONV_ON_CPU 1
#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::exp;

inline float __expf(float x) { return std::exp(x); }
inline float __uint_as_float(unsigned int bits) { return __builtin_bit_cast(float, bits); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }

extern "C" {
const int shared_capacity = 48 * 1024, shared_guard = 4096;
__align__(16) inline unsigned char shared[shared_capacity + shared_guard];
}

struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
inline uint4 __ldg(const uint4* at) { return *at; }
inline uint4 __ldcg(const uint4* at) { return *at; }
inline void __stcg(uint4* at, uint4 value) { *at = value; }

struct Index {
  unsigned int x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

const int STACK_BYTES = 128 * 1024;
enum class State { ready, at_warp, at_block, left };

struct Fiber {
  State state;
  jmp_buf place;
  std::unique_ptr<char[]> memory;
  Stack stack;
  ucontext_t context;
  bool started = false;
  int barriers, syncs;  // __syncthreads and __syncwarp passed in this block
  int parity;
  unsigned int slot[2][8];  // what a lane shows to its warp, turn by turn
};

inline std::vector<Fiber> fibers;
inline int running;
inline jmp_buf scheduler;
inline Stack scheduler_stack;
inline unsigned int order;  // of blocks, warps and lanes: 0 rising, 1 falling, else shuffled, anew at every barrier
inline unsigned int noise;  // xorshift's
inline void (*kernel)(const void*);
inline const void* arguments;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda shim: %s\n", what);
  std::abort();
}

inline void wait(State at) {
  watch_nobody();
  Fiber& fiber = fibers[running];
  fiber.state = at;
  if (_setjmp(fiber.place) == 0) {
    before_jump(fiber.stack, scheduler_stack);
    _longjmp(scheduler, 1);
  }
  after_jump(fibers[running].stack, &scheduler_stack);
}

inline void body() {
  after_jump(fibers[running].stack, &scheduler_stack);
  for (;;) {
    kernel(arguments);
    wait(State::left);
  }
}

// Runs a fiber to its next barrier or its end.
inline void resume(int index) {
  Fiber& fiber = fibers[index];
  running = index;
  threadIdx.x = index;
  fiber.state = State::ready;
  if (_setjmp(scheduler) != 0) return after_jump(scheduler_stack, nullptr);
  if (!fiber.started) {
    fiber.memory.reset(new char[STACK_BYTES]);
    fiber.stack = {fiber.memory.get(), STACK_BYTES};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.memory.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, body, 0);
  }
  before_jump(scheduler_stack, fiber.stack);
  watch(blockIdx.x, index, fiber.barriers, fiber.syncs, fiber.stack, fibers.data(), fibers.size() * sizeof(Fiber));
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

// Runs act(i) for each i below `count`, in the chosen order.
template <class Do> void each(int count, const Do& act) {
  std::vector<int> turns(count);
  std::iota(turns.begin(), turns.end(), 0);
  for (int i = count - 1; i > 0 && order > 1; --i) {
    noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
    std::swap(turns[i], turns[noise % (i + 1)]);
  }
  for (int i = 0; i < count; ++i) act(turns[order == 1 ? count - 1 - i : i]);
}

// Runs a warp until all its lanes wait for the block or have left.
inline void run_warp(int first, int last) {
  for (bool shuffled = true; shuffled;) {
    int count[4] = {};
    each(last - first, [&](int lane) {
      if (fibers[first + lane].state == State::ready) resume(first + lane);
      ++count[static_cast<int>(fibers[first + lane].state)];
    });
    const int at_warp = count[static_cast<int>(State::at_warp)];
    shuffled = at_warp > 0;
    if (shuffled && at_warp < last - first) fail("some lanes of a warp are not at its shuffle");
    if (shuffled)
      for (int i = first; i < last; ++i) fibers[i].state = State::ready;
  }
}

inline void run_block(int threads) {
  for (int i = 0; i < threads; ++i)
    fibers[i].state = State::ready, fibers[i].barriers = fibers[i].syncs = fibers[i].parity = 0;
  for (bool going = true; going;) {
    going = false;
    each((threads + 31) / 32, [&](int warp) { run_warp(warp * 32, warp * 32 + 32 < threads ? warp * 32 + 32 : threads); });
    for (int i = 0; i < threads; ++i)
      if (fibers[i].state == State::at_block) fibers[i].state = State::ready, going = true;
  }
}

// $SHIM_ORDER, if set, is the order of the threads and the seed of the shuffling.
inline void run(unsigned int blocks, int threads, int shared_bytes, void (*entry)(const void*), const void* args) {
  if (shared_bytes > shared_capacity) fail("a block asks for more shared memory than there is");
  if (static_cast<int>(fibers.size()) < threads) fibers.resize(threads);
  const char* chosen = std::getenv("SHIM_ORDER");
  kernel = entry, arguments = args, order = noise = chosen ? std::atoi(chosen) : 0;
  gridDim.x = blocks, blockDim.x = threads;
  each(blocks, [&](int block) {
    blockIdx.x = block;
    std::memset(shared, 0xff, shared_bytes);
    std::memset(shared + shared_bytes, 0x5a, shared_guard);
    fence(shared + shared_bytes, shared_guard);
    watch_block(shared, shared_capacity + shared_guard);
    run_block(threads);
    open(shared + shared_bytes, shared_guard);
    for (int i = 0; i < shared_guard; ++i)
      if (shared[shared_bytes + i] != 0x5a) fail("shared memory is written beyond what was asked for");
  });
  watch_end();
}

// Shows `mine` to the warp; afterwards read(lane) gives any lane's.
template <class T> struct Exchange {
  static_assert(sizeof(T) <= sizeof(Fiber::slot[0]));
  int turn = fibers[running].parity;

  explicit Exchange(const T& mine) {
    std::memcpy(fibers[running].slot[turn], &mine, sizeof(T));
    fibers[running].parity = 1 - turn;
    wait(State::at_warp);
  }
  T read(int lane) const {
    T value;
    std::memcpy(&value, fibers[running / 32 * 32 + lane].slot[turn], sizeof(T));
    return value;
  }
};

template <class A> void call(void (*entry)(A), const void* args) {
  entry(*static_cast<const std::remove_const_t<A>*>(args));
}

}  // namespace shim

inline void __syncthreads() {
  ++shim::fibers[shim::running].barriers;
  shim::wait(shim::State::at_block);
}

inline void __syncwarp(unsigned int = 0xffffffffu) {
  ++shim::fibers[shim::running].syncs;
  shim::wait(shim::State::at_warp);
}

template <class T> __attribute__((no_sanitize("thread"))) T atomicAdd(T* at, T more) {
  shim::watch_atomic(at, sizeof(T));
  const T before = *at;
  *at = before + more;
  return before;
}

template <class T> T __shfl_xor_sync(unsigned int, T value, int mask) {
  return shim::Exchange<T>(value).read((threadIdx.x % 32) ^ mask);
}

namespace lightconv::cuda {

inline float shim_widen(__half value) { return __half2float(value); }
inline float shim_widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// mma m16n8k16 by the layout of the PTX manual.
template <class S> void mma(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
  struct Words {
    unsigned int a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  const shim::Exchange<Words> warp(mine);
  const auto half_of = [](unsigned int word, int column) {
    const unsigned short bits = static_cast<unsigned short>(word >> (column % 2 * 16));
    return shim_widen(__builtin_bit_cast(S, bits));
  };
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const Words of_a = warp.read(row % 8 * 4 + k % 8 / 2), of_b = warp.read(column * 4 + k % 8 / 2);
      sum += half_of(of_a.a[row / 8 + k / 8 * 2], k) * half_of(of_b.b[k / 8], k);
    }
    d[i] += sum;
  }
}

}  // namespace lightconv::cuda
