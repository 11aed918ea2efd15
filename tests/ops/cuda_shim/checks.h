// What AddressSanitizer, where it is loaded, and accesses.cpp, for kernels compiled with SHIM_ACCESSES, have to be told.
#pragma once

#include <cstddef>

#if defined(SHIM_ACCESSES)
#include "accesses.h"
#endif

extern "C" {  // null where AddressSanitizer is not loaded
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_bytes);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* at, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* at, size_t bytes);
}

namespace shim {

// A stack that fibers jump between.
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake = nullptr;  // AddressSanitizer's
};

// To be called before a jump from one stack to another, and after it.
inline void before_jump(Stack& from, const Stack& to) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
}
inline void after_jump(Stack& to, Stack* from) {
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(to.fake, from ? &from->bottom : nullptr, from ? &from->bytes : nullptr);
}

// Makes any access to some memory an error, or usual again.
inline void fence(const void* at, size_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(at, bytes);
}
inline void open(const void* at, size_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(at, bytes);
}

// Which block and which of its threads goes on, for accesses.cpp; `own`: memory of the shim, which does not count.
#if defined(SHIM_ACCESSES)
inline void watch_block(const void* shared, size_t bytes) { shim_watch_block({shared, bytes}); }
inline void watch(int block, int thread, int barriers, int syncs, const Stack& stack, const void* own, size_t own_bytes) {
  shim_watch({block, thread, barriers, syncs}, {stack.bottom, stack.bytes}, {own, own_bytes});
}
inline void watch_nobody() { shim_watch_nobody(); }
inline void watch_atomic(const void* at, size_t bytes) { shim_watch_atomic(at, bytes); }
inline void watch_end() { shim_watch_end(); }
#else
inline void watch_block(const void*, size_t) {}
inline void watch(int, int, int, int, const Stack&, const void*, size_t) {}
inline void watch_nobody() {}
inline void watch_atomic(const void*, size_t) {}
inline void watch_end() {}
#endif

}  // namespace shim
