// Runs a kernel's threads on one CPU thread: block after block, with a fiber for each thread of a block, in an order
// that can be chosen. A fiber runs from one barrier to the next without interruption.
#include "scheduler.h"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

const int shared_capacity = 72 * 1024, shared_guard = 4096, stack_bytes = 128 * 1024;

extern "C" {
Index threadIdx, blockIdx, blockDim, gridDim;
alignas(16) unsigned char shared[shared_capacity + shared_guard];

// null if AddressSanitizer is not loaded
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_bytes);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* at, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* at, size_t bytes);
}

namespace shim {
namespace {

// The stack of a fiber or of the scheduler, as AddressSanitizer needs to know it when another stack is used.
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake = nullptr;
};

void before_jump(Stack& from, const Stack& to) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
}

void after_jump(Stack& to, Stack* from) {
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(to.fake, from ? &from->bottom : nullptr, from ? &from->bytes : nullptr);
}

enum class State { ready, at_warp, at_block, left };

struct Fiber {
  State state;
  jmp_buf place;
  std::unique_ptr<char[]> memory;
  Stack stack;
  ucontext_t context;
  bool started = false;
  int turn;                 // the slot that is used next
  int barriers, warp_barriers;  // number passed so far
  std::deque<std::pair<int, Copy>> copies;  // pending copies with the number of their group
  int group;                                // of the next copy
  unsigned char slot[2][32];  // values that the lane shows to its warp, in turn
};

std::vector<Fiber> fibers;
int running;
jmp_buf scheduler;
Stack scheduler_stack;
unsigned int order, noise;  // noise: state of a xorshift generator
void (*kernel)(const void*);
const void* arguments;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "cuda shim: %s\n", what);
  std::abort();
}

void wait(State at) {
  fibers[running].state = at;
  if (_setjmp(fibers[running].place) == 0) {
    before_jump(fibers[running].stack, scheduler_stack);
    _longjmp(scheduler, 1);
  }
  after_jump(fibers[running].stack, &scheduler_stack);
}

void body() {
  after_jump(fibers[running].stack, &scheduler_stack);
  for (;;) {
    kernel(arguments);
    wait(State::left);
  }
}

// ---- Races. Kernels compiled with -fsanitize=thread report each access to the functions at the end of this file ----

// Two threads race for a byte if one of them writes it and there is no barrier between their accesses: one of their
// block, or one of their warp. Shuffles are not barriers, and between blocks there are none. Bytes that were accessed
// by an atomic operation are not checked.
struct Access {
  int block = -1, thread = -1, barriers = 0, warp_barriers = 0;  // block -1: no access
};

struct Byte {
  Access writer, readers[2];  // readers: since the last write, from two warps if there are two
  bool atomic = false;
};

std::unordered_map<uintptr_t, std::array<Byte, 16>> memory;  // of one launch; key: address / 16

bool is_shared(uintptr_t at) { return at - reinterpret_cast<uintptr_t>(shared) < sizeof shared; }

// True if an access is ordered before `now`, one of the running thread.
bool ordered(const Access& before, const Access& now, uintptr_t at) {
  if (before.block != now.block) return before.block < 0 || is_shared(at);
  if (before.thread == now.thread || before.barriers < now.barriers) return true;
  return before.thread / 32 == now.thread / 32 && before.warp_barriers < now.warp_barriers;
}

void must(bool well, uintptr_t at, const Access& before, const Access& now, const char* what) {
  if (well) return;
  std::fprintf(stderr, "cuda shim: a race: thread %d of block %d %s thread %d of block %d, ", now.thread, now.block,
               what, before.thread, before.block);
  if (is_shared(at)) std::fprintf(stderr, "byte %d of shared memory\n", static_cast<int>(at - reinterpret_cast<uintptr_t>(shared)));
  else std::fprintf(stderr, "address %p\n", reinterpret_cast<void*>(at));
  std::abort();
}

Byte& byte_of(uintptr_t at) { return memory[at / 16][at % 16]; }

Access here() { return {static_cast<int>(blockIdx.x), running, fibers[running].barriers, fibers[running].warp_barriers}; }

void access(const void* from, size_t bytes, bool writes) {
  const auto first = reinterpret_cast<uintptr_t>(from);
  if (first - reinterpret_cast<uintptr_t>(fibers[running].memory.get()) < stack_bytes) return;
  for (const Index* own : {&threadIdx, &blockIdx, &blockDim, &gridDim})
    if (first - reinterpret_cast<uintptr_t>(own) < sizeof *own) return;
  const Access now = here();
  for (uintptr_t at = first; at < first + bytes; ++at) {
    Byte& byte = byte_of(at);
    if (byte.atomic) continue;
    must(ordered(byte.writer, now, at), at, byte.writer, now,
         writes ? "writes after an unordered write by" : "reads after an unordered write by");
    Access* readers = byte.readers;
    for (int i = 0; i < 2 && writes; ++i)
      must(ordered(readers[i], now, at), at, readers[i], now, "writes after an unordered read by");
    if (writes) byte = {now};
    else if (ordered(readers[0], now, at)) readers[0] = now, readers[1] = ordered(readers[1], now, at) ? Access{} : readers[1];
    else if (ordered(readers[1], now, at) || readers[1].thread / 32 == readers[0].thread / 32) readers[1] = now;
  }
}

// Runs a fiber to its next barrier or its end.
void resume(int index) {
  Fiber& fiber = fibers[index];
  running = index;
  threadIdx.x = index;
  fiber.state = State::ready;
  if (_setjmp(scheduler) != 0) return after_jump(scheduler_stack, nullptr);
  if (!fiber.started) {
    fiber.memory.reset(new char[stack_bytes]);
    fiber.stack = {fiber.memory.get(), stack_bytes};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.memory.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    makecontext(&fiber.context, body, 0);
  }
  before_jump(scheduler_stack, fiber.stack);
  if (std::exchange(fiber.started, true)) _longjmp(fiber.place, 1);
  setcontext(&fiber.context);
}

// Calls act(i) for each i below `count`, in the chosen order.
template <class Do> void each(int count, const Do& act) {
  std::vector<int> turns(count);
  std::iota(turns.begin(), turns.end(), 0);
  for (int i = count - 1; i > 0 && order > 1; --i) {
    noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
    std::swap(turns[i], turns[noise % (i + 1)]);
  }
  for (int i = 0; i < count; ++i) act(turns[order == 1 ? count - 1 - i : i]);
}

// Runs a warp until each of its lanes waits at a barrier of the block or has finished.
void run_warp(int first, int last) {
  for (bool shuffled = true; shuffled;) {
    int count[4] = {};
    each(last - first, [&](int lane) {
      if (fibers[first + lane].state == State::ready) resume(first + lane);
      ++count[static_cast<int>(fibers[first + lane].state)];
    });
    const int at_warp = count[static_cast<int>(State::at_warp)];
    shuffled = at_warp > 0;
    if (shuffled && at_warp < last - first) fail("some lanes of a warp do not reach its shuffle or barrier");
    if (shuffled)
      for (int i = first; i < last; ++i) fibers[i].state = State::ready;
  }
}

void run_block(int threads) {
  for (int i = 0; i < threads; ++i)
    fibers[i].copies.clear(), fibers[i].state = State::ready, fibers[i].turn = fibers[i].group = fibers[i].barriers = fibers[i].warp_barriers = 0;
  for (bool going = true; going;) {
    going = false;
    each((threads + 31) / 32, [&](int warp) { run_warp(warp * 32, warp * 32 + 32 < threads ? warp * 32 + 32 : threads); });
    for (int i = 0; i < threads; ++i)
      if (fibers[i].state == State::at_block) fibers[i].state = State::ready, going = true;
  }
}

}  // namespace

void run(unsigned int blocks, int threads, int shared_bytes, void (*entry)(const void*), const void* args) {
  if (shared_bytes > shared_capacity) fail("a block needs more shared memory than the emulated GPU has");
  if (static_cast<int>(fibers.size()) < threads) fibers.resize(threads);
  const char* chosen = std::getenv("SHIM_ORDER");
  kernel = entry, arguments = args, order = noise = chosen ? std::atoi(chosen) : 0;
  gridDim.x = blocks, blockDim.x = threads;
  memory.clear();
  unsigned char* end = shared + shared_bytes;
  each(blocks, [&](int block) {
    blockIdx.x = block;
    std::memset(shared, 0xff, shared_bytes);  // NaN, so that reading memory before it is written shows in the results
    std::memset(end, 0x5a, shared_guard);
    if (__asan_poison_memory_region) __asan_poison_memory_region(end, shared_guard);
    run_block(threads);
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(end, shared_guard);
    for (int i = 0; i < shared_guard; ++i)
      if (end[i] != 0x5a) fail("shared memory is written beyond the size given at the launch");
  });
}

void sync_block() { wait(State::at_block), ++fibers[running].barriers; }
void sync_warp() { wait(State::at_warp), ++fibers[running].warp_barriers; }
void atomic(const void* at, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) byte_of(reinterpret_cast<uintptr_t>(at) + i).atomic = true;
}

void copy_later(const Copy& copy) {
  access(copy.to, 16, true);
  fibers[running].copies.emplace_back(fibers[running].group, copy);
}
void finish_group() { ++fibers[running].group; }

bool next_copy(int left, Copy& copy) {
  auto& copies = fibers[running].copies;
  if (copies.empty() || copies.front().first >= fibers[running].group - left) return false;
  copy = copies.front().second;
  copies.pop_front();
  for (uintptr_t at = reinterpret_cast<uintptr_t>(copy.to), i = 0; i < 16; ++i) {  // no access since the copy began
    const Byte& byte = byte_of(at + i);
    must(byte.writer.thread == running, at + i, byte.writer, here(), "finishes a copy over a write by");
    for (const Access& reader : byte.readers)
      must(reader.block < 0, at + i, reader, here(), "finishes a copy after a read by");
  }
  return true;
}

int show(const void* mine, size_t bytes) {
  Fiber& fiber = fibers[running];
  const int shown = std::exchange(fiber.turn, 1 - fiber.turn);
  std::memcpy(fiber.slot[shown], mine, bytes);
  wait(State::at_warp);
  return shown;
}

void read(int lane, int shown, void* to, size_t bytes) {
  std::memcpy(to, fibers[running / 32 * 32 + lane].slot[shown], bytes);
}

}  // namespace shim

#define ACCESS(bytes) \
  void __tsan_read##bytes(void* at) { shim::access(at, bytes, false); } \
  void __tsan_write##bytes(void* at) { shim::access(at, bytes, true); }

extern "C" {
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* at, size_t bytes) { shim::access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { shim::access(at, bytes, true); }
}
