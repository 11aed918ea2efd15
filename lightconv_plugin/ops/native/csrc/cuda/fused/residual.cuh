// z = x + dropout(y) and its layer norm in one launch, and their gradients, for rows of C = Case::R numbers. With s
// bytes per number the forward pass reads 2 * N * C * s bytes and writes as many. So does the backward pass with
// dropout; without dropout it writes half of that.
//
// The mask of number i = row * C + c is word i % 4 of the Philox block with counter (q low, q high, 0, 2), q = i / 4,
// and key = the seed's two halves, see random.h. The last word of the counter makes it differ from DropConnect's masks
// and from the dropout of the CPU kernels.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"
#include "random.h"

namespace lightconv::cuda {

// Factors of dropout, 1 / (1 - p) or 0, for V neighbouring numbers from `first` on, which is a multiple of V.
template <int V, class A>
__device__ __forceinline__ void dropout_factors(const DropConnect& drop, unsigned long long seed, long long first,
                                                A (&factor)[V]) {
#pragma unroll
  for (int v = 0; v < V; v += 4) {
    const long long quad = (first + v) / 4;
    const Words words = philox({{static_cast<Word>(quad), static_cast<Word>(quad >> 32), 0, 2}},
                               static_cast<Word>(seed), static_cast<Word>(seed >> 32));
    const int skipped = V >= 4 ? 0 : static_cast<int>(first % 4);
#pragma unroll
    for (int w = 0; w < smaller(V, 4); ++w) {
      const int at = w + skipped;
      const Word word = at == 0 ? words.word[0] : at == 1 ? words.word[1] : at == 2 ? words.word[2] : words.word[3];
      factor[v + w] = word >= drop.threshold ? A(drop.scale) : A(0);
    }
  }
}

// Returns to each thread of a row the sum over these threads. All threads of the block must call it.
template <int Warps, class A> __device__ __forceinline__ A row_sum(A value, unsigned char* shared) {
  value = lanes_sum<32>(value);
  if constexpr (Warps > 1) {
    A* kept = reinterpret_cast<A*>(shared);
    const int warp = threadIdx.x / 32, first = warp / Warps * Warps;
    __syncthreads();  // the previous sum has been read
    if (threadIdx.x % 32 == 0) kept[warp] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int i = 0; i < Warps; ++i) value += kept[first + i];
  }
  return value;
}

// Calls act(j, c) for each of this thread's vectors in a row: vector j starts at channel c.
template <Case C, class Do> __device__ __forceinline__ void each_vector(const Do& act) {
  constexpr NormTile tile = norm_tile(C);
  constexpr int lanes = 32 * tile.warps;
  const int lane = threadIdx.x % lanes;
#pragma unroll
  for (int j = 0; j < tile.vectors; ++j) {
    const int c = (j * lanes + lane) * tile.vector;
    if (c < C.R) act(j, c);
  }
}

template <Case C> __device__ __forceinline__ void residual_norm(const NormArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr NormTile tile = norm_tile(C);
  constexpr int V = tile.vector;
  const long long row = static_cast<long long>(blockIdx.x) * tile.rows + threadIdx.x / (32 * tile.warps);
  const bool present = row < args.N;
  const unsigned long long seed = C.drop ? *args.dropout.seed : 0;
  A z[tile.vectors][V], sum = 0;
  if (present)
    each_vector<C>([&](int j, int c) {
      const long long at = row * C.R + c;
      A x[V], y[V];
      widen(load_fixed<S, V>(static_cast<const S*>(args.x) + at), x);
      widen(load_fixed<S, V>(static_cast<const S*>(args.y) + at), y);
      if constexpr (C.drop) {
        A factor[V];
        dropout_factors(args.dropout, seed, at, factor);
#pragma unroll
        for (int v = 0; v < V; ++v) y[v] *= factor[v];
      }
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] += y[v];
      const Vec<S, V> rounded = narrow<S, V>(x);
      store<S, V>(static_cast<S*>(args.z) + at, rounded);
      widen(rounded, z[j]);  // rounded: the backward pass computes with the stored z
#pragma unroll
      for (int v = 0; v < V; ++v) sum += z[j][v];
    });
  const A mean = row_sum<tile.warps>(sum, shared) / A(C.R);
  A squares = 0;
  if (present)
    each_vector<C>([&](int j, int) {
#pragma unroll
      for (int v = 0; v < V; ++v) z[j][v] -= mean, squares += z[j][v] * z[j][v];
    });
  const A rstd = A(1) / sqrt(row_sum<tile.warps>(squares, shared) / A(C.R) + A(args.eps));
  if (!present) return;
  each_vector<C>([&](int j, int c) {
    A weight[V], bias[V];
    widen(load_fixed<S, V>(static_cast<const S*>(args.weight) + c), weight);
    widen(load_fixed<S, V>(static_cast<const S*>(args.bias) + c), bias);
#pragma unroll
    for (int v = 0; v < V; ++v) z[j][v] = z[j][v] * rstd * weight[v] + bias[v];
    store<S, V>(static_cast<S*>(args.out) + row * C.R + c, narrow<S, V>(z[j]));
    if (c == 0) {
      A* stats = static_cast<A*>(args.stats) + row;
      stats[0] = mean, stats[args.N] = rstd;
    }
  });
}

// Sums `value` over a block's rows and writes the result `to` (C,). kept: (rows, C), in shared memory.
template <Case C, class A, int J, int V>
__device__ __forceinline__ void write_partial(const A (&value)[J][V], A* kept, A* to) {
  constexpr NormTile tile = norm_tile(C);
  const int group = threadIdx.x / (32 * tile.warps);
  __syncthreads();
  each_vector<C>([&](int j, int c) {
#pragma unroll
    for (int v = 0; v < V; ++v) kept[group * C.R + c + v] = value[j][v];
  });
  __syncthreads();
  for (int c = threadIdx.x; c < C.R; c += NORM_THREADS) {
    A sum = 0;
#pragma unroll
    for (int row = 0; row < tile.rows; ++row) sum += kept[row * C.R + c];
    to[c] = sum;
  }
}

// grad_x = rstd * (g - mean(g) - n * mean(g * n)) with g = grad * weight and n = (z - mean) * rstd.
template <Case C> __device__ __forceinline__ void residual_norm_backward(const NormGradArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr NormTile tile = norm_tile(C);
  constexpr int V = tile.vector;
  const unsigned long long seed = C.drop ? *args.dropout.seed : 0;
  A of_weight[tile.vectors][V] = {}, of_bias[tile.vectors][V] = {};
  for (long long first = static_cast<long long>(blockIdx.x) * tile.rows; first < args.N; first += args.splits * tile.rows) {
    const long long row = first + threadIdx.x / (32 * tile.warps);
    const bool present = row < args.N;
    const A* stats = static_cast<const A*>(args.stats) + row;
    const A mean = present ? stats[0] : A(0), rstd = present ? stats[args.N] : A(0);
    A normal[tile.vectors][V], g[tile.vectors][V], sum = 0, product = 0;
    if (present)
      each_vector<C>([&](int j, int c) {
        A grad[V], weight[V];
        widen(load_fixed<S, V>(static_cast<const S*>(args.z) + row * C.R + c), normal[j]);
        widen(load_fixed<S, V>(static_cast<const S*>(args.grad) + row * C.R + c), grad);
        widen(load_fixed<S, V>(static_cast<const S*>(args.weight) + c), weight);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          normal[j][v] = (normal[j][v] - mean) * rstd;
          of_weight[j][v] += grad[v] * normal[j][v], of_bias[j][v] += grad[v];
          g[j][v] = grad[v] * weight[v];
          sum += g[j][v], product += g[j][v] * normal[j][v];
        }
      });
    sum = row_sum<tile.warps>(sum, shared) / A(C.R), product = row_sum<tile.warps>(product, shared) / A(C.R);
    if (present)
      each_vector<C>([&](int j, int c) {
        const long long at = row * C.R + c;
#pragma unroll
        for (int v = 0; v < V; ++v) g[j][v] = rstd * (g[j][v] - sum - normal[j][v] * product);
        store<S, V>(static_cast<S*>(args.grad_x) + at, narrow<S, V>(g[j]));
        if constexpr (C.drop) {
          A factor[V];
          dropout_factors(args.dropout, seed, at, factor);
#pragma unroll
          for (int v = 0; v < V; ++v) g[j][v] *= factor[v];
          store<S, V>(static_cast<S*>(args.grad_y) + at, narrow<S, V>(g[j]));
        }
      });
  }
  A* partial = static_cast<A*>(args.partial) + blockIdx.x * 2ll * C.R;
  write_partial<C>(of_weight, reinterpret_cast<A*>(shared), partial);
  write_partial<C>(of_bias, reinterpret_cast<A*>(shared), partial + C.R);
}

// Adds up the partial sums of the splits. A block computes 32 of the 2 * C sums; each of its warps adds every
// (NORM_THREADS / 32)-th split.
template <Case C> __device__ __forceinline__ void residual_norm_sums(const NormGradArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int warps = NORM_THREADS / 32;
  A* kept = reinterpret_cast<A*>(shared);  // (warps, 32)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long c = blockIdx.x * 32ll + lane, sums = 2 * args.C;
  A sum = 0;
  if (c < sums) {
#pragma unroll 8
    for (long long split = warp; split < args.splits; split += warps)
      sum += static_cast<const A*>(args.partial)[split * sums + c];
  }
  kept[threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0 || c >= sums) return;
  A total = 0;
#pragma unroll
  for (int row = 0; row < warps; ++row) total += kept[row * 32 + lane];
  static_cast<S*>(args.grad_affine)[c] = narrow<S>(total);
}

}  // namespace lightconv::cuda
