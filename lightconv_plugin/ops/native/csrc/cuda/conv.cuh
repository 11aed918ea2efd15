// LightConv and DynamicConv forward, and grad_x, which is the transposed convolution of the gradient: softmax,
// DropConnect and sum in one launch, without tensor cores.
//
// A block copies the input rows of its positions, with the K - 1 rows of halo, to shared memory once. It stores the
// weights as a band: for each run of 8 positions and each input row, the 8 weights of that row side by side. For each
// input row a thread then reads 16 bytes of input and 32 bytes of weights (the same for all lanes of a head) for 8 x 8
// multiply-adds (float32: 8 x 4).
#pragma once

#include "cuda/weights.cuh"

namespace lightconv::cuda {

// Adds input row r of a run to its sums. Rows near the ends reach fewer than RUN positions; First and Last mark them at
// compile time. Taps outside the kernel are skipped: multiplying an infinite input by zero would give NaN.
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

// Position of a block: its first position, sentence and first head. Position of a band: its first input row and tap.
struct ConvPlace {
  int t0, b, head, first, tap;
};

// Writes the band of `Count` taps of the block's kernels. Forward, tap j of position t0 + s belongs to input row s + j
// of the block. For grad_x (`flip`), tap j of the kernel at gradient row `row` belongs to position
// row - (Count - 1 - j), where `row` is input row number Count - 1 - j.
template <Case C, int Count>
__device__ __forceinline__ void write_band(const ConvArgs& args, const ConvPlace& at,
                                           const typename Scalar<C.type>::type* logits, float* band) {
  using S = typename Scalar<C.type>::type;
  constexpr ConvTile tile = conv_tile(C);
  constexpr int rows = !per_position(C) ? 1 : C.flip ? C.positions + Count - 1 : C.positions;
  constexpr bool whole = bands_of(C) == 1;
  constexpr int G = larger(lanes_per_row(rows * tile.heads, tile.threads, Count), whole ? 1 : 4);
  using Weights = Row<one_band(C), G>;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  each_row<G>(rows * tile.heads, tile.threads, [&](int item, int g, bool valid) {
    const int row = item / tile.heads, h = item % tile.heads, t = (C.flip ? at.first : at.t0) + row;
    const long long n = (static_cast<long long>(t) * args.B + at.b) * C.H + at.head + h;
    Weights weights;
    if constexpr (whole) {
      weights.load(logits + item * C.K, g);
    } else {
      const bool there = at.head + h < C.H && (!C.dynamic || (t >= 0 && t < args.T));
      const long long from = there ? (C.dynamic ? row_of(args, t, at.b) * C.H : 0) + at.head + h : 0;
      weights.load_part(static_cast<const S*>(args.logits) + from * C.K + at.tap, g, there ? Count : 0,
                        there && C.softmax ? args.row_sums + 2 * from : nullptr);
    }
    if constexpr (C.drop) weights.drop(args.dropconnect, seed, n, g, at.tap / 4);
    if (!valid) return;
    Weights::each(g, [&](int j, int q, int i) {
      if (!whole && j >= Count) return;
      const int tap = C.flip ? Count - 1 - j : j;
      const float w = weights.at[q][i];
      if constexpr (!per_position(C)) {
#pragma unroll
        for (int p = 0; p < RUN; ++p) band[h * tile.band + (tap + p) * RUN + p] = w;
      } else {
        const int s = C.flip ? row - tap : row, p = s & (RUN - 1);
        if (!C.flip || (s >= 0 && s < C.positions))
          band[(s / RUN * tile.heads + h) * tile.band + (tap + p) * RUN + p] = w;
      }
    });
  });
}

// A block's channels, and one thread's run of positions and channels.
template <Case C> struct ConvThread {
  static constexpr ConvTile tile = conv_tile(C);
  static constexpr int channels = tile.channels();
  int c0, end, run, c;  // the block's first channel and the end of its heads; the thread's run and first channel
  bool works;
};

// Adds the products of `Count` taps, from at.tap on, to the sums of all threads.
template <Case C, int Count, int V>
__device__ __forceinline__ void add_band(const ConvArgs& args, ConvPlace at, const ConvThread<C>& thread,
                                         unsigned char* shared, float (&sum)[RUN][V]) {
  using S = typename Scalar<C.type>::type;
  constexpr ConvTile tile = conv_tile(C);
  constexpr int lanes = tile.lanes, channels = tile.channels();
  at.first = at.t0 + (C.flip ? args.padding_l + 1 - at.tap - Count : at.tap - args.padding_l);
  S* rows = reinterpret_cast<S*>(shared);
  float* band = reinterpret_cast<float*>(shared + tile.band_offset);
  if constexpr (bands_of(C) == 1) {
    constexpr int logit_rows = !per_position(C) ? 1 : C.flip ? C.positions + Count - 1 : C.positions;
    stage_logits<C, tile.heads>(args, rows, logit_rows, tile.threads, C.flip ? at.first : at.t0, at.head, at.b);
  }
  __syncthreads();
  write_band<C, Count>(args, at, rows, band);
  if (bands_of(C) == 1) __syncthreads();

  const long long stride = static_cast<long long>(args.step) * C.H * C.R;
  const S* x = static_cast<const S*>(args.x) + row_of(args, 0, at.b) * C.H * C.R + thread.c0;
#pragma unroll 4
  for (int i = threadIdx.x; i < (C.positions + Count - 1) * lanes; i += tile.threads) {
    const int row = i / lanes, c = i % lanes * V, t = at.first + row;
    const bool inside = t >= 0 && t < args.T && thread.c0 + c < thread.end;
    vec<S, V>(rows + row * channels + c) = inside ? load_fixed<S, V>(x + t * stride + c) : zeros<S, V>();
  }
  __syncthreads();
  if (!thread.works) return;

  const S* row = rows + thread.run * RUN * channels + thread.c;
  const int h = tile.parts > 1 ? 0 : thread.c / C.R;
  const float* weights = band + ((per_position(C) ? thread.run * tile.heads : 0) + h) * tile.band;
  if constexpr (Count < RUN) {
#pragma unroll
    for (int r = 0; r < Count + RUN - 1; ++r) add_row<Count, true, true>(sum, row + r * channels, weights + r * RUN, r);
  } else {
#pragma unroll
    for (int r = 0; r < RUN - 1; ++r) add_row<Count, true, false>(sum, row + r * channels, weights + r * RUN, r);
#pragma unroll 4
    for (int r = RUN - 1; r < Count; ++r) add_row<Count, false, false>(sum, row + r * channels, weights + r * RUN, r);
#pragma unroll
    for (int r = Count; r < Count + RUN - 1; ++r)
      add_row<Count, false, true>(sum, row + r * channels, weights + r * RUN, r);
  }
}

template <Case C> __device__ __forceinline__ void conv(const ConvArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr ConvTile tile = conv_tile(C);
  constexpr int V = tile.vector, groups = ceil_div(C.H, tile.heads) * tile.parts;
  const int blocks = (args.T + C.positions - 1) / C.positions, group = blockIdx.x / blocks % groups;
  ConvPlace at{};
  at.b = blockIdx.x / blocks / groups, at.t0 = static_cast<int>(blockIdx.x % blocks) * C.positions;
  at.head = group / tile.parts * tile.heads;
  ConvThread<C> thread{};
  thread.c0 = at.head * C.R + group % tile.parts * tile.channels();
  thread.end = tile.parts > 1 ? (at.head + 1) * C.R : C.H * C.R;
  thread.run = threadIdx.x / tile.lanes, thread.c = threadIdx.x % tile.lanes * V;
  const int t = at.t0 + thread.run * RUN;
  thread.works = thread.run < tile.runs && t < args.T && thread.c0 + thread.c < thread.end;

  float sum[RUN][V] = {};
  constexpr int rest = C.K % tile.taps;
  if constexpr (bands_of(C) == 1) {
    add_band<C, C.K>(args, at, thread, shared, sum);
  } else {
#pragma unroll 1
    for (; at.tap + tile.taps <= C.K; at.tap += tile.taps) add_band<C, tile.taps>(args, at, thread, shared, sum);
    if constexpr (rest > 0) add_band<C, rest>(args, at, thread, shared, sum);
  }
  if (!thread.works) return;
  const long long stride = static_cast<long long>(args.step) * C.H * C.R;
  S* out = static_cast<S*>(args.out) + row_of(args, 0, at.b) * C.H * C.R + thread.c0 + thread.c;
#pragma unroll
  for (int p = 0; p < RUN; ++p)
    if (t + p < args.T) store<S, V>(out + (t + p) * stride, narrow<S, V>(sum[p]));
}

}  // namespace lightconv::cuda
