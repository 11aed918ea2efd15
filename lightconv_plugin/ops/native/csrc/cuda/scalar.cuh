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

// V neighbouring numbers, moved by one access.
template <class S, int V> struct alignas(sizeof(S) * V) Vec {
  S at[V];
};

template <class S, int V, class A> __device__ __forceinline__ void widen(const Vec<S, V>& from, A (&to)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = widen(from.at[v]);
}

template <class S, int V, class A> __device__ __forceinline__ Vec<S, V> narrow(const A (&from)[V]) {
  Vec<S, V> to;
#pragma unroll
  for (int v = 0; v < V; ++v) to.at[v] = narrow<S>(from[v]);
  return to;
}

template <class S, int V> __device__ __forceinline__ Vec<S, V> zeros() {
  Vec<S, V> vec;
#pragma unroll
  for (int v = 0; v < V; ++v) vec.at[v] = narrow<S>(0.0f);
  return vec;
}

template <class S, int V> __device__ __forceinline__ const Vec<S, V>& vec(const S* at) {
  return *reinterpret_cast<const Vec<S, V>*>(at);
}

template <class S, int V> __device__ __forceinline__ Vec<S, V>& vec(S* at) { return *reinterpret_cast<Vec<S, V>*>(at); }

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
