// Sums over the rows of (N, C), always in the same order: of few rows in one stage, in which two neighbouring lanes have a
// sector of each row; of many in two, in both of which a lane has its columns and a warp its rows.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

// Sums of the block's warps, V columns a lane, by the first threads: act(column of the block, sum).
template <int V, class A, class Do>
__device__ __forceinline__ void sum_warps(const A (&sum)[V], unsigned char* shared, const Do& act) {
  A* kept = reinterpret_cast<A*>(shared);  // (warps, V, 32)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int v = 0; v < V; ++v) kept[(warp * V + v) * 32 + lane] = sum[v];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * V; i += SUMS_THREADS) {
    A total = 0;
#pragma unroll
    for (int row = 0; row < SUMS_THREADS / 32; ++row) total += kept[row * 32 * V + i];
    act(i % 32 * V + i / 32, total);
  }
}

// V neighbouring numbers of x, those behind the gate.
template <Case C, int V, class A>
__device__ __forceinline__ void load_gated(const SumsArgs& args, long long at, A (&value)[V]) {
  using S = typename Scalar<C.type>::type;
  widen(load_fixed<S, V>(static_cast<const S*>(args.x) + at), value);
  if constexpr (C.mask) {
    A gate[V];
    widen(load_fixed<S, V>(static_cast<const S*>(args.gate) + at), gate);
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = gate[v] <= A(0) ? A(0) : value[v];
    store<S, V>(static_cast<S*>(args.masked) + at, narrow<S, V>(value));
  }
}

// One block two vectors of columns.
template <Case C> __device__ __forceinline__ void column_sums_of_few(const SumsArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int V = vector_of(C), warps = FEW_ROWS_THREADS / 32;
  const long long c = (blockIdx.x * 2ll + threadIdx.x % 2) * V;
  A sum[V] = {};
  if (c < args.C) {
#pragma unroll 8
    for (long long row = threadIdx.x / 2; row < args.N; row += FEW_ROWS_THREADS / 2) {
      A value[V];
      load_gated<C>(args, row * args.C + c, value);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += value[v];
    }
  }
  A* kept = reinterpret_cast<A*>(shared);  // (warps, 2, V)
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int step = 16; step > 1; step /= 2) sum[v] += __shfl_xor_sync(0xffffffffu, sum[v], step);
    if (threadIdx.x % 32 < 2) kept[threadIdx.x / 32 * 2 * V + threadIdx.x % 2 * V + v] = sum[v];
  }
  __syncthreads();
  const long long column = blockIdx.x * 2ll * V + threadIdx.x;
  if (threadIdx.x >= 2 * V || column >= args.C) return;
  A total = 0;
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) total += kept[warp * 2 * V + threadIdx.x];
  static_cast<S*>(args.out)[column] = narrow<S>(total);
}

// One block a split and 32 vectors of columns.
template <Case C> __device__ __forceinline__ void column_sums(const SumsArgs& args, unsigned char* shared) {
  using A = typename Scalar<C.type>::sum;
  constexpr int V = vector_of(C), warps = SUMS_THREADS / 32;
  const long long tiles = (args.C + 32 * V - 1) / (32 * V), split = blockIdx.x / tiles, first = blockIdx.x % tiles * 32 * V;
  const long long c = first + threadIdx.x % 32 * V;
  A sum[V] = {};
  if (c < args.C) {
#pragma unroll 4
    for (long long row = split * warps + threadIdx.x / 32; row < args.N; row += args.splits * warps) {
      A value[V];
      load_gated<C>(args, row * args.C + c, value);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += value[v];
    }
  }
  sum_warps(sum, shared, [&](int column, A total) {
    if (first + column < args.C) static_cast<A*>(args.partial)[split * args.C + first + column] = total;
  });
}

// One block 32 columns of the splits.
template <Case C> __device__ __forceinline__ void column_sums_finish(const SumsArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  const long long first = blockIdx.x * 32ll, c = first + threadIdx.x % 32;
  A sum[1] = {};
  if (c < args.C) {
#pragma unroll 8
    for (long long split = threadIdx.x / 32; split < args.splits; split += SUMS_THREADS / 32)
      sum[0] += static_cast<const A*>(args.partial)[split * args.C + c];
  }
  sum_warps(sum, shared, [&](int column, A total) {
    if (first + column < args.C) static_cast<S*>(args.out)[first + column] = narrow<S>(total);
  });
}

}  // namespace lightconv::cuda
