// LightConv and DynamicConv forward, and grad_x, for 16-bit types on tensor cores. A head's kernels at 16 positions
// form a band matrix, which is multiplied by the input rows that these kernels reach, with float32 sums. See BandTile.
#pragma once

#include "cuda/mma.cuh"
#include "cuda/weights.cuh"

namespace lightconv::cuda {

// Position of a block: its first position, sentence, first head and first channel of the head. Position of a band: its
// first input row, first tap and number of taps.
struct BandPlace {
  int t0, b, head, channel;
  int first, tap, count;
};

// Row of the logits of position t and head h of the block.
template <Case C>
__device__ __forceinline__ long long logit_row(const ConvArgs& args, const BandPlace& at, int t, int h) {
  return (C.dynamic ? row_of(args, t, at.b) * C.H : 0) + at.head + h;
}

// Index of the first logit in a row's copy in shared memory: the copy starts at the multiple of 16 bytes before the
// row.
template <Case C> __device__ __forceinline__ int logit_start(long long row, int tap) {
  return C.aligned ? (static_cast<Word>(row) * C.K + tap) % 8 : 0;
}

// True if the block's head h, or its channel c, exists in x: the last block may extend beyond.
template <Case C> __device__ __forceinline__ bool in_heads(const BandPlace& at, int h) {
  return C.H % band_tile(C).heads == 0 || at.head + h < C.H;
}
template <Case C> __device__ __forceinline__ bool in_channels(const BandPlace& at, int h, int c) {
  constexpr BandTile tile = band_tile(C);
  return in_heads<C>(at, h) && (C.R % (tile.parts * tile.chunk) == 0 || at.channel + c < C.R);
}

template <Case C>
__device__ __forceinline__ void stage_logits(const ConvArgs& args, const BandPlace& at, unsigned char* to) {
  using S = typename Scalar<C.type>::type;
  constexpr BandTile tile = band_tile(C);
  constexpr int V = C.aligned ? 8 : 1, vectors = C.aligned ? tile.logit_row_bytes / 16 : tile.taps;
  const S* logits = static_cast<const S*>(args.logits);
  const S* end = logits + (C.dynamic ? static_cast<long long>(args.T) * args.B : 1) * C.H * C.K;
  const int from = C.flip ? at.first : at.t0;
  each_place<tile.logit_rows * tile.heads, power_of_two_from(vectors), tile.threads>([&](int item, int vector) {
    const int t = from + item / tile.heads, h = item % tile.heads;
    const bool there = in_heads<C>(at, h) && (!C.dynamic || static_cast<Word>(t) < args.T);
    const long long start = there ? logit_row<C>(args, at, t, h) * C.K + at.tap : 0;
    const int before = C.aligned ? static_cast<int>(start % V) : 0;  // in numbers
    const bool inside = there && vector * V < before + at.count;
    const S* number = logits + (inside ? start - before + vector * V : 0);
    unsigned char* place = to + item * tile.logit_row_bytes + vector * V * 2;
    if (vector >= vectors) return;
    if constexpr (C.aligned)
      copy_later(place, number, !inside ? 0 : end - number < V ? static_cast<int>(end - number) * 2 : 16);
    else
      vec<S, 1>(reinterpret_cast<S*>(place)) = inside ? vec<S, 1>(number) : zeros<S, 1>();
  });
}

// Copies the block's rows of x or of the gradient, from position `first` on, to shared memory.
template <Case C>
__device__ __forceinline__ void stage_inputs(const ConvArgs& args, const BandPlace& at, const void* inputs, int first,
                                             unsigned char* to) {
  using S = typename Scalar<C.type>::type;
  constexpr BandTile tile = band_tile(C);
  constexpr int V = tile.vector, of_head = tile.parts * tile.chunk, lanes = tile.heads * of_head / V;
  const long long stride = static_cast<long long>(args.step) * C.H * C.R;
  const S* x = static_cast<const S*>(inputs) + (row_of(args, 0, at.b) * C.H + at.head) * C.R + at.channel;
  each_place<tile.rows, lanes, tile.threads>([&](int row, int lane) {
    const int h = lane * V / of_head, c = lane * V % of_head, t = first + row;
    const bool inside = static_cast<Word>(t) < args.T && in_channels<C>(at, h, c);
    const S* from = inside ? x + t * stride + h * C.R + c : x;
    S* place = reinterpret_cast<S*>(to + row * tile.row_bytes) + lane * V;
    if constexpr (V == 8) copy_or_clear(place, from, inside);
    else vec<S, V>(place) = inside ? load_fixed<S, V>(from) : zeros<S, V>();
  });
}

template <Case C> __device__ __forceinline__ void clear_band(unsigned char* band) {
  using S = typename Scalar<C.type>::type;
  constexpr BandTile tile = band_tile(C);
  for (int i = threadIdx.x; i < (tile.x_offset - tile.band_offset) / 16; i += tile.threads)
    vec<S, 8>(reinterpret_cast<S*>(band) + i * 8) = zeros<S, 8>();
}

// Writes the weights of the block's kernels into the band, which was cleared. Row s, column s % 16 + u is the weight of
// position s for input row s + u. Forward, that is tap u of the kernel at position s; for grad_x (`flip`) it is tap
// count - 1 - u of the kernel at gradient row s + u.
template <Case C>
__device__ __forceinline__ void write_band(const ConvArgs& args, const BandPlace& at, const unsigned char* logits,
                                           unsigned char* band) {
  using S = typename Scalar<C.type>::type;
  constexpr BandTile tile = band_tile(C);
  constexpr int rows = tile.weight_rows * tile.heads;
  constexpr int fewest = tile.taps > 32 ? 4 : tile.taps > 16 ? 2 : 1;  // lanes per row, to save registers
  constexpr int G = larger(lanes_per_row(rows, tile.threads, tile.taps), fewest);
  constexpr bool whole = bands_of(C) == 1;
  using Weights = Row<one_band(C), G>;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  each_row<G>(rows, tile.threads, [&](int item, int g, bool valid) {
    const int row = item / tile.heads, h = item % tile.heads, t = (C.flip ? at.first : at.t0) + row;
    const long long from = logit_row<C>(args, at, t, h);
    const S* numbers = reinterpret_cast<const S*>(logits + (C.dynamic ? item : h) * tile.logit_row_bytes) +
                       logit_start<C>(from, at.tap);
    Weights weights;
    if constexpr (whole) {
      weights.load(numbers, g);
    } else {
      const bool there = at.head + h < C.H && (!C.dynamic || (t >= 0 && t < args.T));
      weights.load_part(numbers, g, at.count, C.softmax && there ? args.row_sums + 2 * from : nullptr);
    }
    if constexpr (C.drop)
      weights.drop(args.dropconnect, seed, (static_cast<long long>(t) * args.B + at.b) * C.H + at.head + h, g,
                   at.tap / 4);
    if (!valid) return;
    unsigned char* of_head = band + h * tile.band_rows * tile.band_row_bytes;
    Weights::each(g, [&](int j, int q, int i) {
      if (!whole && j >= at.count) return;
      const int u = C.flip ? at.count - 1 - j : j;
      const S weight = narrow<S>(weights.at[q][i]);
      const auto put = [&](int s, int column) {
        *reinterpret_cast<S*>(of_head + s * tile.band_row_bytes + column * 2) = weight;
      };
      if constexpr (!per_position(C) || !C.flip) {
        put(row, row % MMA_POSITIONS + u);
      } else if (const int s = row - u; static_cast<Word>(s) < C.positions) {
        put(s, row - s / MMA_POSITIONS * MMA_POSITIONS);
      }
    });
  });
}

// A warp's results for 16 positions of `chunk` channels, in the 16-bit type: half the registers of the float32 sums.
template <Case C> struct BandResults {
  using S = typename Scalar<C.type>::type;
  static constexpr BandTile tile = band_tile(C);
  Vec<S, 2> pair[tile.chunk / 8][2];

  // Writes the results to shared memory. rows: the warp's rows there, at its first channel.
  __device__ __forceinline__ void write(unsigned char* rows) const {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < tile.chunk / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        vec<S, 2>(reinterpret_cast<S*>(rows + (g + half * 8) * tile.row_bytes) + n * 8 + 2 * q) = pair[n][half];
  }
};

// The float32 sums of a warp's results.
template <Case C> struct BandSums {
  using S = typename Scalar<C.type>::type;
  static constexpr BandTile tile = band_tile(C);
  static constexpr int tiles = tile.chunk / 8;
  float sum[tiles][4];

  // band: the warp's rows of the band, with `count` taps. x: the first input row that they reach, at the warp's first
  // channel.
  __device__ __forceinline__ void multiply(const unsigned char* band, const unsigned char* x, int count) {
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < tile.steps; ++step) {
      Word a[4];
      load_matrices<false>(a, band + row * tile.band_row_bytes + step * 32 + half);
#pragma unroll
      for (int n = 0; n < tiles; n += 2) {
        Word b[4];
        load_matrices<true>(b, x + (step * 16 + row) * tile.row_bytes + n * 16 + half);
        mma<S>(sum[n], a, {b[0], b[1]});
        mma<S>(sum[n + 1], a, {b[2], b[3]});
      }
    }
    float spoiled = 0.0f;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) spoiled += sum[n][i] * 0.0f;
    if (spoiled != 0.0f) add_within_reach(band, x, count);
  }

  // The same without the zeros beside the band: 0 times an input that is not finite is NaN.
  __device__ __forceinline__ void add_within_reach(const unsigned char* band, const unsigned char* x, int count) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
#pragma unroll 1
    for (int column = 0; column < 16 * tile.steps; ++column) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + half * 8;
        if (column < row || column - row >= count) continue;
        const float weight = widen(reinterpret_cast<const S*>(band + row * tile.band_row_bytes)[column]);
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
          float pair[2];
          widen(vec<S, 2>(reinterpret_cast<const S*>(x + column * tile.row_bytes) + n * 8 + 2 * q), pair);
          sum[n][2 * half] += weight * pair[0];
          sum[n][2 * half + 1] += weight * pair[1];
        }
      }
    }
  }

  __device__ __forceinline__ void add(const BandSums& other) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] += other.sum[n][i];
  }

  __device__ __forceinline__ BandResults<C> results() const {
    BandResults<C> to;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float pair[2] = {sum[n][2 * half], sum[n][2 * half + 1]};
        to.pair[n][half] = narrow<S, 2>(pair);
      }
    return to;
  }
};

// Work of a warp: 16 positions from m on, and part number `slice` of the block's channels, which belongs to head h of
// the block.
template <Case C> struct BandWarp {
  static constexpr BandTile tile = band_tile(C);
  static constexpr int blocks = C.positions / MMA_POSITIONS;
  int m, slice, h;

  __device__ __forceinline__ BandWarp()
      : m(threadIdx.x / 32 % blocks * MMA_POSITIONS), slice(threadIdx.x / 32 / blocks), h(slice / tile.parts) {}

  __device__ __forceinline__ const unsigned char* band(const unsigned char* of_block) const {
    return of_block + (h * tile.band_rows + (per_position(C) ? m : 0)) * tile.band_row_bytes;
  }

  __device__ __forceinline__ unsigned char* rows(unsigned char* of_block) const {
    return of_block + m * tile.row_bytes + slice * tile.chunk * 2;
  }

  // Copies the warp's rows of the result from shared memory to out.
  __device__ __forceinline__ void store_rows(const ConvArgs& args, const BandPlace& at, const unsigned char* rows) const {
    using S = typename Scalar<C.type>::type;
    constexpr int V = tile.vector, lanes = tile.chunk / V;
    const int first = slice % tile.parts * tile.chunk;
    const long long stride = static_cast<long long>(args.step) * C.H * C.R;
    S* out = static_cast<S*>(args.out) + (row_of(args, 0, at.b) * C.H + at.head + h) * C.R + at.channel;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < MMA_POSITIONS * lanes; i += 32) {
      const int row = i / lanes, c = i % lanes * V, t = at.t0 + m + row;
      if (t < args.T && in_channels<C>(at, h, first + c))
        store<S, V>(out + t * stride + first + c, vec<S, V>(reinterpret_cast<const S*>(rows + row * tile.row_bytes) + c));
    }
  }
};

template <Case C> __device__ __forceinline__ void band(const ConvArgs& args, unsigned char* shared) {
  constexpr BandTile tile = band_tile(C);
  const int before = C.flip ? C.K - 1 - args.padding_l : args.padding_l;
  constexpr int splits = tile.groups / ceil_div(C.H, tile.heads);
  const int group = blockIdx.x % tile.groups, sentence = blockIdx.x / tile.groups;
  BandPlace at{};
  at.b = sentence % args.B, at.t0 = sentence / args.B * C.positions;
  at.head = group / splits * tile.heads, at.channel = group % splits * tile.parts * tile.chunk;
  unsigned char* band = shared + tile.band_offset;
  unsigned char* logits = shared + tile.logits_offset;
  const BandWarp<C> warp;

  BandSums<C> sums;
#pragma unroll 1
  for (int number = 0; number < bands_of(C); ++number) {
    at.tap = number * tile.taps, at.count = smaller(tile.taps, C.K - at.tap);
    at.first = at.t0 - before + (C.flip ? C.K - at.tap - at.count : at.tap);
    if (number > 0) __syncthreads();
    stage_logits<C>(args, at, logits);
    finish_group();
    stage_inputs<C>(args, at, args.x, at.first, shared);
    finish_group();
    clear_band<C>(band);
    wait_for_copies<1>();
    __syncthreads();
    write_band<C>(args, at, logits, band);
    wait_for_copies<0>();
    __syncthreads();
    if (bands_of(C) == 1 || number == 0) {
      sums.multiply(warp.band(band), warp.rows(shared), at.count);
    } else {
      BandSums<C> more;
      more.multiply(warp.band(band), warp.rows(shared), at.count);
      sums.add(more);
    }
  }

  __syncthreads();
  sums.results().write(warp.rows(shared));
  __syncwarp();
  warp.store_rows(args, at, warp.rows(shared));
}

}  // namespace lightconv::cuda
