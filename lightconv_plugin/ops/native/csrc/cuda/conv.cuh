// LightConv and DynamicConv forward, and grad_x, which is the same convolution turned round: softmax, DropConnect and
// sum in one launch on (T, B, C).
//
// A block stages the input rows of its positions once, with the K - 1 rows of halo, and the weights as a band: for each
// run of 8 positions and each input row the 8 weights that the row meets, side by side. A thread then reads, an input
// row, 16 bytes of input and 32 bytes of weights (the same for all lanes of a head) for 8 x 8 multiply-adds.
#pragma once

#include "cuda/weights.cuh"

namespace lightconv::cuda {

// Sums input row r of a run. Rows near the ends meet fewer than RUN positions, which First and Last say at compile
// time: a tap outside the kernel is not a multiplication by zero, which would make NaN of an infinite input.
template <int K, bool First, bool Last, class S, int V>
__device__ __forceinline__ void add_row(float (&sum)[RUN][V], const S* row, const float* weights, int r) {
  float x[V];
  widen(vec<S, V>(row), x);
  float w[RUN];
#pragma unroll
  for (int p = 0; p < RUN; p += 4) {
    const Vec<float, 4> four = vec<float, 4>(weights + p);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[p + i] = four.at[i];
  }
#pragma unroll
  for (int p = 0; p < RUN; ++p) {
    if ((First && p > r) || (Last && r - p >= K)) continue;
#pragma unroll
    for (int v = 0; v < V; ++v) sum[p][v] += w[p] * x[v];
  }
}

// The band of the block's kernels. Forward, tap j of the position t0 + s meets input row s + j of the block; turned
// round, tap j of the gradient at row `row` reaches the position row + j - (K - 1), as row K - 1 - j counted from it.
template <Case C>
__device__ __forceinline__ void write_band(const ConvArgs& args, const typename Scalar<C.type>::type* logits,
                                           float* band, int t0, int head, int b) {
  constexpr ConvTile tile = conv_tile(C);
  constexpr int K = C.K, rows = !per_position(C) ? 1 : C.flip ? C.positions + K - 1 : C.positions;
  constexpr int G = lanes_per_row(rows * tile.heads, tile.threads, K);
  const int first = C.flip ? t0 - (K - 1 - C.padding_l) : t0;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  each_row<G>(rows * tile.heads, tile.threads, [&](int item, int g, bool valid) {
    const int row = item / tile.heads, h = item % tile.heads;
    Row<C, G> weights;
    weights.load(logits + item * K, g);
    if constexpr (C.drop)
      weights.drop(args.dropconnect, seed, (static_cast<long long>(first + row) * args.B + b) * C.H + head + h, g);
    if (!valid) return;
    Row<C, G>::each(g, [&](int j, int q, int i) {
      const int tap = C.flip ? K - 1 - j : j;
      const float w = weights.at[q][i];
      if constexpr (!per_position(C)) {
#pragma unroll
        for (int p = 0; p < RUN; ++p) band[h * tile.band + (tap + p) * RUN + p] = w;
      } else {
        const int s = C.flip ? row + j - (K - 1) : row, p = s & (RUN - 1);
        if (!C.flip || (s >= 0 && s < C.positions))
          band[(s / RUN * tile.heads + h) * tile.band + (tap + p) * RUN + p] = w;
      }
    });
  });
}

template <Case C> __device__ __forceinline__ void conv(const ConvArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr ConvTile tile = conv_tile(C);
  constexpr int K = C.K, V = tile.vector, lanes = tile.lanes, channels = tile.channels();
  constexpr int groups = ceil_div(C.H, tile.heads) * tile.parts, before = C.flip ? K - 1 - C.padding_l : C.padding_l;
  const int blocks = (args.T + C.positions - 1) / C.positions;
  const int group = blockIdx.x / blocks % groups, b = blockIdx.x / blocks / groups;
  const int t0 = static_cast<int>(blockIdx.x % blocks) * C.positions;
  const int head = group / tile.parts * tile.heads;
  const int c0 = head * C.R + group % tile.parts * channels;
  const int end = tile.parts > 1 ? (head + 1) * C.R : C.H * C.R;

  S* rows = reinterpret_cast<S*>(shared);
  float* band = reinterpret_cast<float*>(shared + tile.band_offset);
  constexpr int logit_rows = !per_position(C) ? 1 : C.flip ? C.positions + K - 1 : C.positions;
  stage_logits<C, tile.heads>(args.logits, rows, logit_rows, tile.threads, C.flip ? t0 - before : t0, head, b, args.T,
                              args.B);
  __syncthreads();
  write_band<C>(args, rows, band, t0, head, b);
  __syncthreads();

  const long long stride = static_cast<long long>(args.B) * C.H * C.R;
  const long long corner = static_cast<long long>(b) * C.H * C.R + c0;
  const S* x = static_cast<const S*>(args.x) + corner;
#pragma unroll 4
  for (int i = threadIdx.x; i < (C.positions + K - 1) * lanes; i += tile.threads) {
    const int row = i / lanes, c = i % lanes * V, t = t0 - before + row;
    const bool inside = t >= 0 && t < args.T && c0 + c < end;
    vec<S, V>(rows + row * channels + c) = inside ? load_fixed<S, V>(x + t * stride + c) : zeros<S, V>();
  }
  __syncthreads();

  const int run = threadIdx.x / lanes, c = threadIdx.x % lanes * V, t = t0 + run * RUN;
  if (run >= tile.runs || t >= args.T || c0 + c >= end) return;
  const S* row = rows + run * RUN * channels + c;
  const int h = tile.parts > 1 ? 0 : c / C.R;
  const float* weights = band + ((per_position(C) ? run * tile.heads : 0) + h) * tile.band;
  float sum[RUN][V] = {};
  if constexpr (K < RUN) {
#pragma unroll
    for (int r = 0; r < K + RUN - 1; ++r) add_row<K, true, true>(sum, row + r * channels, weights + r * RUN, r);
  } else {
#pragma unroll
    for (int r = 0; r < RUN - 1; ++r) add_row<K, true, false>(sum, row + r * channels, weights + r * RUN, r);
#pragma unroll 4
    for (int r = RUN - 1; r < K; ++r) add_row<K, false, false>(sum, row + r * channels, weights + r * RUN, r);
#pragma unroll
    for (int r = K; r < K + RUN - 1; ++r) add_row<K, false, true>(sum, row + r * channels, weights + r * RUN, r);
  }
  S* out = static_cast<S*>(args.out) + corner + c;
#pragma unroll
  for (int p = 0; p < RUN; ++p)
    if (t + p < args.T) store<S, V>(out + (t + p) * stride, narrow<S, V>(sum[p]));
}

}  // namespace lightconv::cuda
