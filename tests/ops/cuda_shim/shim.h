// CUDA C++ as C++ for a CPU; scheduler.cpp runs the threads. Coalescing and register limits are not emulated. Detected
// are shuffles and warp barriers that not all lanes reach, and shared memory that is read before it is written (it
// starts as NaN) or written beyond the size given at the launch; and, with sanitizers, the faults of
// test_cuda_checked.py.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "scheduler.h"

#define LIGHTCONV_ON_CPU 1
#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::exp;
using std::log;
using std::sqrt;

inline float __uint_as_float(unsigned int bits) { return __builtin_bit_cast(float, bits); }
inline unsigned int __float_as_uint(float value) { return __builtin_bit_cast(unsigned int, value); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }

struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
inline uint4 __ldg(const uint4* at) { return *at; }
inline uint4 __ldcg(const uint4* at) { return *at; }
inline void __stcg(uint4* at, uint4 value) { *at = value; }

namespace shim {

// Shows `mine` to the warp; afterwards read(lane) returns the value of any lane.
template <class T> struct Exchange {
  static_assert(sizeof(T) <= 32);
  int shown;

  explicit Exchange(const T& mine) : shown(show(&mine, sizeof mine)) {}
  T read(int lane) const {
    T value;
    shim::read(lane, shown, &value, sizeof value);
    return value;
  }
};

template <class A> void call(void (*entry)(A), const void* args) {
  entry(*static_cast<const std::remove_const_t<A>*>(args));
}

}  // namespace shim

inline void __syncthreads() { shim::sync_block(); }
inline void __syncwarp(unsigned int = 0xffffffffu) { shim::sync_warp(); }

template <class T> T __shfl_xor_sync(unsigned int, T value, int mask) {
  return shim::Exchange<T>(value).read((threadIdx.x % 32) ^ mask);
}

template <class T> T __shfl_sync(unsigned int, T value, int lane) { return shim::Exchange<T>(value).read(lane); }

template <class T> T atomicAdd(T* at, T value) {
  shim::atomic(at, sizeof *at);
  const T before = *at;
  *at += value;
  return before;
}

namespace lightconv::cuda {

inline float exponential(float value) { return std::exp(value); }
inline float two_to(float value) { return std::exp2(value); }
inline float log_two(float value) { return std::log2(value); }
inline float float_of_half(unsigned short bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
inline unsigned short half_of_float(float value) {
  return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value));
}

inline void copy_later(void* to, const void* from, int bytes) { shim::copy_later({to, from, bytes}); }
inline void copy_or_clear(void* to, const void* from, bool there) { copy_later(to, from, there ? 16 : 0); }
inline void finish_group() { shim::finish_group(); }
template <int N> void wait_for_copies() {
  for (shim::Copy copy; shim::next_copy(N, copy);) {
    unsigned char bytes[16] = {};
    for (int i = 0; i < copy.bytes; ++i) bytes[i] = static_cast<const unsigned char*>(copy.from)[i];
    *static_cast<uint4*>(copy.to) = __builtin_bit_cast(uint4, bytes);
  }
}

// ldmatrix, with the layout of the PTX manual.
template <bool Transposed> void load_matrices(unsigned int (&to)[4], const unsigned char* row) {
  struct Row {
    unsigned short number[8];
  } mine;
  static_assert(sizeof mine == sizeof(uint4));
  mine = __builtin_bit_cast(Row, *reinterpret_cast<const uint4*>(row));
  const shim::Exchange<Row> warp(mine);
  const int g = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](int r, int c) { return static_cast<unsigned int>(warp.read(i * 8 + r).number[c]); };
    to[i] = Transposed ? at(column, g) | at(column + 1, g) << 16 : at(g, column) | at(g, column + 1) << 16;
  }
}

// mma m16n8k16, with the layout of the PTX manual.
template <class S> void mma(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
  struct Words {
    unsigned int a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  const shim::Exchange<Words> warp(mine);
  const auto half_of = [](unsigned int word, int column) {
    const unsigned short bits = static_cast<unsigned short>(word >> (column % 2 * 16));
    return widen(__builtin_bit_cast(S, bits));
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
