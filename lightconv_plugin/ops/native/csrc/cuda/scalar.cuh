// The scalar types, vectors of them, and reductions over neighbouring lanes.
#pragma once

#include "cuda/case.h"

namespace lightconv::cuda {

using Word = unsigned int;

constexpr float LOG2_E = 1.4426950408889634f;

// Our own 16-bit types: NVIDIA's headers with theirs have 400 KB, which NVRTC would read for each kernel, one at a
// time.
struct Half {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};

#if defined(LIGHTCONV_ON_CPU)
float float_of_half(unsigned short bits);
unsigned short half_of_float(float value);
#else
__device__ __forceinline__ float float_of_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short half_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

__device__ __forceinline__ unsigned short bfloat16_of_float(float value) {
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const Word bits = __float_as_uint(value);
  return static_cast<unsigned short>(value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

template <Type> struct Scalar;
template <> struct Scalar<Type::f32> { using type = float; using sum = float; };
template <> struct Scalar<Type::f64> { using type = double; using sum = double; };
template <> struct Scalar<Type::f16> { using type = Half; using sum = float; };
template <> struct Scalar<Type::bf16> { using type = Bfloat16; using sum = float; };

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(Half value) { return float_of_half(value.bits); }
__device__ __forceinline__ float widen(Bfloat16 value) { return __uint_as_float(static_cast<Word>(value.bits) << 16); }

template <class S> __device__ __forceinline__ S narrow(double value) { return S(value); }
template <class S> __device__ __forceinline__ S narrow(float value) { return S(value); }
template <> __device__ __forceinline__ Half narrow<Half>(float value) { return {half_of_float(value)}; }
template <> __device__ __forceinline__ Bfloat16 narrow<Bfloat16>(float value) { return {bfloat16_of_float(value)}; }

#if defined(LIGHTCONV_ON_CPU)
float exponential(float value);
float two_to(float value);
float log_two(float value);
#else
// Unlike with exp2f, results below 2^-126 are 0, which saves instructions.
__device__ __forceinline__ float two_to(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ __forceinline__ float log_two(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ __forceinline__ float exponential(float value) { return two_to(value * LOG2_E); }
#endif

__device__ __forceinline__ double exponential(double value) { return exp(value); }

template <class S> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<Bfloat16> = true;

// V neighbouring numbers, moved by one memory access. 16-bit numbers are kept as pairs, which compilers do not split.
template <class S, int V, bool Pairs = sizeof(S) == 2 && V >= 2> struct alignas(sizeof(S) * V) Vec {
  S at[V];
};
template <class S, int V> struct alignas(sizeof(S) * V) Vec<S, V, true> {
  Word pair[V / 2];
};

template <class S, int V, class A> __device__ __forceinline__ void widen(const Vec<S, V>& from, A (&to)[V]) {
  if constexpr (sizeof(S) == 2 && V >= 2) {
#pragma unroll
    for (int v = 0; v < V; v += 2) {
      const Word pair = from.pair[v / 2];
      if constexpr (is_bfloat16<S>) {
        to[v] = __uint_as_float(pair << 16);
        to[v + 1] = __uint_as_float(pair & 0xffff0000u);
      } else {
        to[v] = float_of_half(static_cast<unsigned short>(pair & 0xffffu));
        to[v + 1] = float_of_half(static_cast<unsigned short>(pair >> 16));
      }
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = widen(from.at[v]);
  }
}

template <class S, int V, class A> __device__ __forceinline__ Vec<S, V> narrow(const A (&from)[V]) {
  Vec<S, V> to;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if constexpr (sizeof(S) == 2 && V >= 2) {
      if (v % 2 == 0)
        to.pair[v / 2] = narrow<S>(from[v]).bits | static_cast<Word>(narrow<S>(from[v + 1]).bits) << 16;
    } else {
      to.at[v] = narrow<S>(from[v]);
    }
  }
  return to;
}

template <class S, int V> __device__ __forceinline__ Vec<S, V> zeros() {
  const float zero[V] = {};
  return narrow<S, V>(zero);
}

template <class S, int V> __device__ __forceinline__ const Vec<S, V>& vec(const S* at) {
  return *reinterpret_cast<const Vec<S, V>*>(at);
}

// Loads and stores of vectors in global memory. For 16 bytes an intrinsic is used, since the compiler may split a plain
// access. `load_fixed` is for memory that nothing writes while the kernel runs.
template <class S, int V> __device__ __forceinline__ Vec<S, V> load_fixed(const S* at) {
  if constexpr (sizeof(Vec<S, V>) == 16)
    return __builtin_bit_cast(Vec<S, V>, __ldg(reinterpret_cast<const uint4*>(at)));
  else
    return vec<S, V>(at);
}

template <class S, int V> __device__ __forceinline__ Vec<S, V> load(const S* at) {
  if constexpr (sizeof(Vec<S, V>) == 16)
    return __builtin_bit_cast(Vec<S, V>, __ldcg(reinterpret_cast<const uint4*>(at)));
  else
    return vec<S, V>(at);
}

template <class S, int V> __device__ __forceinline__ void store(S* at, const Vec<S, V>& from) {
  if constexpr (sizeof(Vec<S, V>) == 16)
    __stcg(reinterpret_cast<uint4*>(at), __builtin_bit_cast(uint4, from));
  else
    *reinterpret_cast<Vec<S, V>*>(at) = from;
}

template <class S, int V> __device__ __forceinline__ Vec<S, V>& vec(S* at) { return *reinterpret_cast<Vec<S, V>*>(at); }

// Asynchronous copies of 16 bytes from global to shared memory. copy_later reads only the first `bytes`; the others
// become 0. copy_or_clear copies all 16 bytes or sets all to 0, which takes fewer instructions. finish_group ends a
// group of copies. wait_for_copies<N> waits for all groups but the last N.
#if defined(LIGHTCONV_ON_CPU)
void copy_later(void* to, const void* from, int bytes);
void copy_or_clear(void* to, const void* from, bool there);
void finish_group();
template <int N> void wait_for_copies();
#else
__device__ __forceinline__ void copy_later(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<Word>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#else
  __trap();  // never reached: Case::tensor_cores implies sm_80 or later
#endif
}

__device__ __forceinline__ void copy_or_clear(void* to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .pred ignored;\nsetp.eq.s32 ignored, %2, 0;\n"
               "cp.async.cg.shared.global [%0], [%1], 16, ignored;\n}" ::"r"(
                   static_cast<Word>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(there))
               : "memory");
#else
  __trap();
#endif
}

__device__ __forceinline__ void finish_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
#endif

// Calls act(row, lane) once for each of `Lanes` lanes in each of `Rows` rows. If Lanes divides the number of threads, a
// thread keeps its lane, and expressions that depend only on the lane are computed once.
template <int Rows, int Lanes, int Threads, class Do> __device__ __forceinline__ void each_place(const Do& act) {
  if constexpr (Threads % Lanes == 0) {
    constexpr int step = Threads / Lanes;
    const int first = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
#pragma unroll 4
    for (int i = 0; i < Rows / step; ++i) act(first + i * step, lane);
    if (Rows % step != 0 && first + Rows / step * step < Rows) act(first + Rows / step * step, lane);
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < Rows * Lanes; i += Threads) act(i / Lanes, i % Lanes);
  }
}

// Sum and maximum over groups of G neighbouring lanes, G a power of two; every lane of the warp takes part.
template <int G, class A> __device__ __forceinline__ A lanes_sum(A value) {
#pragma unroll
  for (int step = G / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

template <int G, class A> __device__ __forceinline__ A lanes_max(A value) {
#pragma unroll
  for (int step = G / 2; step > 0; step /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace lightconv::cuda
