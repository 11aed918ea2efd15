// Attention with one query per row over the keys of the row's sentence. A warp computes one row and one head of R =
// Case::R channels, 32 keys at a time: each lane scores one key, and sums some channels of the values. These sums are
// rescaled when a larger score comes.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

template <Case C> __device__ __forceinline__ void attend(const AttendArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int R = C.R, K = vector_of(C);                                  // numbers in a vector of a key
  constexpr int V = smaller(K, power_of_two_in(round_up(R, 32) / 32, 16));  // of a value: so that most lanes work
  constexpr int parts = ceil_div(R, 32 * V);
  const A none = A(-__uint_as_float(0x7f800000u));  // -infinity
  const int lane = threadIdx.x % 32;
  const long long row = blockIdx.x / args.H * (ATTEND_THREADS / 32) + threadIdx.x / 32, head = blockIdx.x % args.H;
  if (row >= args.N) return;
  const long long sentence = args.sentence[row], width = args.H * R;
  const bool known = sentence >= 0 && sentence < args.sentences;
  const long long first = (known ? sentence : 0) * args.S;
  const S* query = static_cast<const S*>(args.query) + row * width + head * R;
  const S* keys = static_cast<const S*>(args.keys) + first * width + head * R;
  const S* values = static_cast<const S*>(args.values) + first * width + head * R;
  A top = none, total = 0, sum[parts][V] = {};
  for (long long begin = 0; begin < args.S; begin += 32) {
    const long long s = begin + lane;
    const bool seen = s < args.S && !(C.mask && args.padding[first + s]);
    A score = 0;
    if (seen) {
#pragma unroll 4
      for (int c = 0; c < R; c += K) {
        A q[K], k[K];
        widen(load_fixed<S, K>(query + c), q);
        widen(load_fixed<S, K>(keys + s * width + c), k);
#pragma unroll
        for (int v = 0; v < K; ++v) score += q[v] * k[v];
      }
      score *= A(args.scale);
    }
    const A highest = lanes_max<32>(seen ? score : none);
    const A before = top;
    top = highest > top ? highest : top;
    if (top == none) continue;  // nothing seen so far
    const A kept = before == none ? A(0) : exponential(before - top);
    const A weight = seen ? exponential(score - top) : A(0);
    total = total * kept + lanes_sum<32>(weight);
#pragma unroll
    for (int j = 0; j < parts; ++j)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[j][v] *= kept;
    const int count = args.S - begin < 32 ? static_cast<int>(args.S - begin) : 32;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const A share = __shfl_sync(0xffffffffu, weight, i);
#pragma unroll
      for (int j = 0; j < parts; ++j) {
        const int c = (j * 32 + lane) * V;
        if (c < R) {
          A value[V];
          widen(load_fixed<S, V>(values + (begin + i) * width + c), value);
#pragma unroll
          for (int v = 0; v < V; ++v) sum[j][v] += share * value[v];
        }
      }
    }
  }
  // A row without unmasked keys is 0. A row whose sentence does not exist is NaN.
  const A scale = !known ? A(__uint_as_float(0x7fc00000u)) : total > 0 ? A(1) / total : A(0);
#pragma unroll
  for (int j = 0; j < parts; ++j) {
    const int c = (j * 32 + lane) * V;
    if (c < R) {
#pragma unroll
      for (int v = 0; v < V; ++v) sum[j][v] *= scale;
      store<S, V>(static_cast<S*>(args.out) + row * width + head * R + c, narrow<S, V>(sum[j]));
    }
  }
}

}  // namespace lightconv::cuda
