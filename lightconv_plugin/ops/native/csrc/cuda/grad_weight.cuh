// The gradient of the logits. First the products, sums over a head's channels of grad[t] * x[t + j - padding_l], which
// are a band of the matrix product G X^T; then the derivatives of DropConnect and softmax. DynamicConv writes the
// gradient (T, B, H, K). LightConv sums over the positions of a split into partial (splits, H, K), and `finish` adds
// these up in a fixed order. Without atomics, the result has the same bits every time.
#pragma once

#include "cuda/mma.cuh"
#include "cuda/weights.cuh"

namespace lightconv::cuda {

// Copies rows of x or grad, from position `first` on and with `heads` x `chunk` channels each, to shared memory. Rows
// and channels outside x become 0.
template <Case C>
__device__ __forceinline__ void stage_rows(const ConvArgs& args, const void* from, unsigned char* to, int rows, int first,
                                           int head, int chunk, int b) {
  using S = typename Scalar<C.type>::type;
  constexpr GradTile tile = grad_tile(C);
  constexpr int V = tile.vector, per_head = tile.chunk / V, lanes = tile.heads * per_head;
  const S* at = static_cast<const S*>(from) + (row_of(args, 0, b) * C.H + head) * C.R;
  const long long stride = static_cast<long long>(args.step) * C.H * C.R;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * lanes; i += tile.threads) {
    const int row = i / lanes, lane = i % lanes, h = lane / per_head, t = first + row;
    const int c = chunk * tile.chunk + lane % per_head * V;
    const bool inside = t >= 0 && t < args.T && head + h < C.H && c < C.R;
    const S* source = inside ? at + t * stride + h * C.R + c : at;
    S* place = reinterpret_cast<S*>(to + tile.offset(row)) + lane * V;
    if constexpr (C.tensor_cores && V == 8) copy_or_clear(place, source, inside);
    else vec<S, V>(place) = inside ? load_fixed<S, V>(source) : zeros<S, V>();
  }
}

// Sums of one thread without tensor cores: GRAD_POSITIONS x GRAD_TAPS of one head, accumulated over the chunks.
template <Case C> struct ScalarSums {
  static constexpr int quads = C.positions / GRAD_POSITIONS, blocks = ceil_div(grad_tile(C).taps, GRAD_TAPS);
  static constexpr int heads = grad_tile(C).heads;
  float sum[GRAD_POSITIONS][GRAD_TAPS] = {};
  int t, j, h;

  __device__ __forceinline__ ScalarSums()
      : t(threadIdx.x % quads * GRAD_POSITIONS),
        j(threadIdx.x / quads % blocks * GRAD_TAPS),
        h(threadIdx.x / quads / blocks) {}

  __device__ __forceinline__ void add(const unsigned char* grad, const unsigned char* x) {
    using S = typename Scalar<C.type>::type;
    constexpr GradTile tile = grad_tile(C);
    constexpr int V = tile.vector;
    if (h >= heads) return;
#pragma unroll 1
    for (int c = h * tile.chunk; c < (h + 1) * tile.chunk; c += V) {
      float g[GRAD_POSITIONS][V];
#pragma unroll
      for (int i = 0; i < GRAD_POSITIONS; ++i)
        widen(vec<S, V>(reinterpret_cast<const S*>(grad + tile.offset(t + i)) + c), g[i]);
#pragma unroll
      for (int r = 0; r < GRAD_POSITIONS + GRAD_TAPS - 1; ++r) {
        float row[V];
        widen(vec<S, V>(reinterpret_cast<const S*>(x + tile.offset(t + j + r)) + c), row);
#pragma unroll
        for (int i = 0; i < GRAD_POSITIONS; ++i) {
          if (r < i || r - i >= GRAD_TAPS) continue;
#pragma unroll
          for (int v = 0; v < V; ++v) sum[i][r - i] += g[i][v] * row[v];
        }
      }
    }
  }

  // Calls act(position in the block, tap, head in the block, sum) for each sum.
  template <class Do> __device__ __forceinline__ void each(const Do& act) const {
    if (h >= heads) return;
#pragma unroll
    for (int i = 0; i < GRAD_POSITIONS; ++i)
#pragma unroll
      for (int k = 0; k < GRAD_TAPS; ++k) act(t + i, j + k, h, sum[i][k]);
  }
};

// Sums of one warp on tensor cores: 16 positions and the 16 + taps - 1 input rows that they reach, of one head.
template <Case C> struct MmaSums {
  static constexpr GradTile tile = grad_tile(C);
  MmaProducts<typename Scalar<C.type>::type, ceil_div(MMA_POSITIONS - 1 + tile.taps, 16)> products;
  int t, h;

  __device__ __forceinline__ MmaSums()
      : t(threadIdx.x / 32 % (C.positions / MMA_POSITIONS) * MMA_POSITIONS),
        h(threadIdx.x / 32 / (C.positions / MMA_POSITIONS)) {}

  __device__ __forceinline__ void add(const unsigned char* grad, const unsigned char* x) {
    const int at = tile.offset(t) + h * tile.chunk * 2;
    products.add(grad + at, x + at, tile.row_bytes, tile.chunk * 2);
  }

  // Calls act(position in the block, tap, head in the block, sum) for each sum; some taps are outside the band.
  template <class Do> __device__ __forceinline__ void each(const Do& act) const {
    products.each([&](int position, int row, float sum) { act(t + position, row - position, h, sum); });
  }
};

template <Case C> __device__ __forceinline__ auto make_sums() {
  if constexpr (C.tensor_cores) return MmaSums<C>();
  else return ScalarSums<C>();
}

// Writes the products of one block's positions and `count` taps to shared memory as [position][head][tap]; 0 if the
// input row or the position is outside the sequence.
template <Case C>
__device__ __forceinline__ void products(const ConvArgs& args, unsigned char* shared, int t0, int head, int b, int tap,
                                         int count) {
  constexpr GradTile tile = grad_tile(C);
  unsigned char* grad_rows = shared;
  unsigned char* x_rows = shared + tile.offset(C.positions + 3) / 16 * 16;
  auto sums = make_sums<C>();
#pragma unroll 1
  for (int chunk = 0; chunk < tile.chunks; ++chunk) {
    if (chunk > 0) __syncthreads();
    stage_rows<C>(args, args.grad, grad_rows, C.positions, t0, head, chunk, b);
    stage_rows<C>(args, args.x, x_rows, C.positions + tile.taps - 1, t0 + tap - args.padding_l, head, chunk, b);
    finish_group();
    wait_for_copies<0>();
    __syncthreads();
    sums.add(grad_rows, x_rows);
  }
  __syncthreads();
  float* to = reinterpret_cast<float*>(shared);
  sums.each([&](int t, int j, int h, float sum) {
    if (j < 0 || j >= count) return;
    const int from = t0 + t + tap + j - args.padding_l;
    to[(t * tile.heads + h) * tile.products.stride + j] = t0 + t < args.T && from >= 0 && from < args.T ? sum : 0.0f;
  });
}

// DynamicConv: computes the gradient of one band of the block's logits from the products, `sums`. The derivative of
// softmax needs the sum over all taps of weight times product. If there are several bands, a first pass over them
// (`last` is false) accumulates this sum in `dots`. If there is one band, logits(item) is a row of logits in shared
// memory.
template <Case C, Products P, class Logits>
__device__ __forceinline__ void dynamic_rows(const ConvArgs& args, float* sums, float* dots, const Logits& logits, int t0,
                                             int head, int b, int tap, int count, bool last) {
  using S = typename Scalar<C.type>::type;
  constexpr bool whole = bands_of(C) == 1;
  constexpr int rows = C.positions * P.heads, G = larger(lanes_per_row(rows, P.threads, P.taps), whole ? 1 : 4);
  using Weights = Row<one_band(C), G>;
  if constexpr (C.softmax || C.drop) {
    __syncthreads();
    const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
    each_row<G>(rows, P.threads, [&](int item, int g, bool valid) {
      const int t = t0 + item / P.heads, h = head + item % P.heads;
      const long long n = (static_cast<long long>(t) * args.B + b) * C.H + h;
      float* row = sums + item * P.stride;
      Weights grad;
      const bool mine = rows * G % 32 == 0 || valid;  // otherwise other lanes write this row at the same time
      Weights::each(g, [&](int j, int q, int i) { grad.at[q][i] = mine && j < count ? row[j] : 0.0f; });
      if constexpr (C.drop) grad.drop(args.dropconnect, seed, n, g, tap / 4);
      if constexpr (C.softmax) {
        Weights weights;
        if constexpr (whole) {
          weights.load(logits(item), g);
        } else {
          const bool there = t < args.T && h < C.H;
          const long long from = row_of(args, t, b) * C.H + h;
          weights.load_part(static_cast<const S*>(args.logits) + (there ? from * C.K + tap : 0), g, there ? count : 0,
                            there ? args.row_sums + 2 * from : nullptr);
        }
        float dot = 0.0f;
        Weights::each(g, [&](int, int q, int i) { dot += weights.at[q][i] * grad.at[q][i]; });
        dot = lanes_sum<G>(dot);
        if constexpr (!whole) {
          if (last) dot = dots[item];
          else if (valid && g == 0) dots[item] = (tap == 0 ? 0.0f : dots[item]) + dot;
        }
        Weights::each(g, [&](int, int q, int i) { grad.at[q][i] = weights.at[q][i] * (grad.at[q][i] - dot); });
      }
      if (last && valid) Weights::each(g, [&](int j, int q, int i) { row[j] = grad.at[q][i]; });
    });
  }
  __syncthreads();
  if (!last) return;
  S* out = static_cast<S*>(args.grad_logits) + (row_of(args, 0, b) * C.H + head) * C.K + tap;
  const long long stride = static_cast<long long>(args.step) * C.H * C.K;
  each_place<rows, power_of_two_from(P.taps), P.threads>([&](int row, int j) {
    const int t = row / P.heads, h = row % P.heads;
    if (t0 + t < args.T && head + h < C.H && j < count)
      out[(t0 + t) * stride + h * C.K + j] = narrow<S>(sums[row * P.stride + j]);
  });
}

// LightConv: adds the products of each group of the block's positions to totals[group][head][tap]. Each total is
// updated by one thread.
template <Case C, Products P>
__device__ __forceinline__ void light_rows(const ConvArgs& args, float* sums, float* totals, int t0, int head, int b,
                                           int tap, int count) {
  constexpr int rows = C.positions * P.heads, quads = ceil_div(P.taps, 4), width = P.heads * P.taps;
  constexpr int positions = C.positions / groups_of(C);
  __syncthreads();
  if constexpr (C.drop) {
    const unsigned long long seed = *args.dropconnect.seed;
    for (int item = threadIdx.x; item < rows * quads; item += P.threads) {
      const int row = item / quads, quad = item % quads;
      const int t = t0 + row / P.heads, h = head + row % P.heads;
      float factor[4];
      keep_factors(args.dropconnect, seed, (static_cast<long long>(t) * args.B + b) * C.H + h, tap / 4 + quad, factor);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (quad * 4 + i < count) sums[row * P.stride + quad * 4 + i] *= factor[i];
    }
    __syncthreads();
  }
  for (int item = threadIdx.x; item < groups_of(C) * width; item += P.threads) {
    const int first = item / width * positions, h = item % width / P.taps, j = item % P.taps;
    if (j >= count) continue;
    float total = 0.0f;
#pragma unroll
    for (int t = 0; t < positions; ++t) total += sums[((first + t) * P.heads + h) * P.stride + j];
    totals[item] += total;
  }
  __syncthreads();
}

template <Case C, Products P> __device__ __forceinline__ void clear_totals(float* totals) {
  for (int item = threadIdx.x; item < groups_of(C) * P.heads * P.taps; item += P.threads) totals[item] = 0.0f;
}

// Called after light_rows: adds up the totals of the groups and stores them as partial sum number `split`.
template <Case C, Products P>
__device__ __forceinline__ void store_totals(const ConvArgs& args, const float* totals, int split, int head, int tap,
                                             int count) {
  constexpr int width = P.heads * P.taps;
  for (int item = threadIdx.x; item < width; item += P.threads) {
    const int h = item / P.taps, j = item % P.taps;
    if (head + h >= C.H || j >= count) continue;
    float total = 0.0f;
#pragma unroll
    for (int group = 0; group < groups_of(C); ++group) total += totals[group * width + item];
    args.partial[(static_cast<long long>(split) * C.H + head + h) * C.K + tap + j] = total;
  }
}

template <Case C> __device__ __forceinline__ void grad_weight(const ConvArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr GradTile tile = grad_tile(C);
  constexpr int groups = ceil_div(C.H, tile.heads), bands = bands_of(C);
  const int blocks = (args.T + C.positions - 1) / C.positions;
  float* sums = reinterpret_cast<float*>(shared);
  float* totals = reinterpret_cast<float*>(shared + tile.sums_offset);
  if constexpr (C.dynamic) {
    const int head = static_cast<int>(blockIdx.x / blocks % groups) * tile.heads, b = blockIdx.x / blocks / groups;
    const int t0 = static_cast<int>(blockIdx.x % blocks) * C.positions;
    S* logits = reinterpret_cast<S*>(shared + tile.logits_offset);
#pragma unroll 1
    for (int i = bands > 1 && C.softmax ? 0 : bands; i < 2 * bands; ++i) {
      const int tap = i % bands * tile.taps, count = smaller(tile.taps, C.K - tap);
      if (bands > 1) __syncthreads();
      products<C>(args, shared, t0, head, b, tap, count);
      if constexpr (C.softmax && bands == 1)
        stage_logits<C, tile.heads>(args, logits, C.positions, tile.threads, t0, head, b);
      dynamic_rows<C, tile.products>(args, sums, totals, [&](int item) { return logits + item * C.K; }, t0, head, b, tap,
                                     count, i >= bands);
    }
  } else {
    const int head = static_cast<int>(blockIdx.x % groups) * tile.heads, tap = blockIdx.x / groups % bands * tile.taps;
    const int split = blockIdx.x / groups / bands, count = smaller(tile.taps, C.K - tap);
    clear_totals<C, tile.products>(totals);
#pragma unroll 1
    for (long long block = split; block < static_cast<long long>(blocks) * args.B; block += args.splits) {
      const int t0 = static_cast<int>(block % blocks) * C.positions, b = static_cast<int>(block / blocks);
      products<C>(args, shared, t0, head, b, tap, count);
      light_rows<C, tile.products>(args, sums, totals, t0, head, b, tap, count);
    }
    store_totals<C, tile.products>(args, totals, split, head, tap, count);
  }
}

}  // namespace lightconv::cuda
