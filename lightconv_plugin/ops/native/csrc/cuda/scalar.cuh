// The scalar types, vectors of them, and reductions over neighbouring lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/case.h"

namespace lightconv::cuda {

using Word = unsigned int;

template <Type> struct Scalar;
template <> struct Scalar<Type::f32> { using type = float; using sum = float; };
template <> struct Scalar<Type::f64> { using type = double; using sum = double; };
template <> struct Scalar<Type::f16> { using type = __half; using sum = float; };
template <> struct Scalar<Type::bf16> { using type = __nv_bfloat16; using sum = float; };

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class S> __device__ __forceinline__ S narrow(double value) { return S(value); }
template <class S> __device__ __forceinline__ S narrow(float value) { return S(value); }
template <> __device__ __forceinline__ __half narrow<__half>(float value) { return __float2half_rn(value); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

__device__ __forceinline__ float exponential(float value) { return __expf(value); }
__device__ __forceinline__ double exponential(double value) { return exp(value); }

__device__ __forceinline__ Word bits_of(__half value) { return __half_as_ushort(value); }
__device__ __forceinline__ Word bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }
template <class S> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<__nv_bfloat16> = true;

// V neighbouring numbers, moved by one access; 16-bit ones in pairs, which compilers keep together.
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
        to[v] = widen(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu)));
        to[v + 1] = widen(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
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
      if (v % 2 == 0) to.pair[v / 2] = bits_of(narrow<S>(from[v])) | bits_of(narrow<S>(from[v + 1])) << 16;
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

// Vectors from and to global memory. 16 bytes go by an instruction of its own: left to itself the compiler may take them
// apart. `load_fixed` is for what no kernel writes while this one runs.
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

// 16 bytes from global to shared memory, of which only the first `bytes` are read and the others become 0. They have
// arrived after wait_for_copies<N>, which leaves the last N groups under way; finish_group ends a group.
#if defined(LIGHTCONV_ON_CPU)
void copy_later(void* to, const void* from, int bytes);
void finish_group();
template <int N> void wait_for_copies();
#else
__device__ __forceinline__ void copy_later(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<Word>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#else
  __trap();  // tensor_cores says sm_80 or later
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
