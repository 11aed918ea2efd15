// The weights of a block: its logits are copied to shared memory, then G lanes per row of K compute softmax and
// DropConnect.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"
#include "random.h"

namespace lightconv::cuda {

// The row of memory that holds position t of sentence b; see args.h.
__device__ __forceinline__ long long row_of(const ConvArgs& args, long long t, long long b) {
  return t * args.step + b * args.sentence;
}

// DropConnect's factors for taps 4 * quad .. 4 * quad + 3 of kernel n = (t * B + b) * H + h: 1 / (1 - p) if the tap is
// kept, otherwise 0.
__device__ __forceinline__ void keep_factors(const DropConnect& drop, unsigned long long seed, long long n, int quad,
                                             float (&factor)[4]) {
  const Words words = philox({{static_cast<Word>(n), static_cast<Word>(n >> 32), static_cast<Word>(quad), 0}},
                             static_cast<Word>(seed), static_cast<Word>(seed >> 32));
#pragma unroll
  for (int i = 0; i < 4; ++i) factor[i] = words.word[i] >= drop.threshold ? static_cast<float>(drop.scale) : 0.0f;
}

// Returns the number of lanes per row with which `rows` rows keep most of a block's `threads` threads busy.
constexpr int lanes_per_row(int rows, int threads, int K) {
  int lanes = 1;
  while (lanes < 8 && 2 * lanes * rows <= threads && lanes * 4 < K) lanes *= 2;
  return lanes;
}

// A row of K weights in registers: lane g of G holds the quads (four taps) g, g + G, ... Nothing is read beyond K.
template <Case C, int G> struct Row {
  static constexpr int QUADS = ceil_div(ceil_div(C.K, 4), G);
  float at[QUADS][4];

  template <class Do> __device__ __forceinline__ static void each(int g, const Do& act) {
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = (q * G + g) * 4 + i;
        if (j < C.K) act(j, q, i);
      }
  }

  // Loads a whole row of logits and computes softmax, if C.softmax.
  template <class S> __device__ __forceinline__ void load(const S* logits, int g) {
    each(g, [&](int j, int q, int i) { at[q][i] = widen(logits[j]); });
    if constexpr (C.softmax) {
      float most = -__int_as_float(0x7f800000);
      each(g, [&](int, int q, int i) { most = fmaxf(most, at[q][i]); });
      most = lanes_max<G>(most);
      float sum = 0.0f;
      each(g, [&](int, int q, int i) { sum += at[q][i] = exponential(at[q][i] - most); });
      const float scale = 1.0f / lanes_sum<G>(sum);
      each(g, [&](int, int q, int i) { at[q][i] *= scale; });
    }
  }

  // Loads the first `count` logits of one band of a row and normalises them by the row's sums. With softmax and without
  // sums (a null pointer), the weights are 0.
  template <class S>
  __device__ __forceinline__ void load_part(const S* logits, int g, int count, const float* row_sums) {
    const float most = C.softmax && row_sums ? row_sums[0] : 0.0f, scale = C.softmax && row_sums ? row_sums[1] : 0.0f;
    each(g, [&](int j, int q, int i) {
      const float logit = j < count ? widen(logits[j]) : 0.0f;
      at[q][i] = C.softmax ? exponential(logit - most) * scale : logit;
    });
  }

  __device__ __forceinline__ void drop(const DropConnect& dropconnect, unsigned long long seed, long long n, int g,
                                       int first_quad = 0) {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      float factor[4];
      keep_factors(dropconnect, seed, n, first_quad + q * G + g, factor);
#pragma unroll
      for (int i = 0; i < 4; ++i) at[q][i] *= factor[i];
    }
  }
};

// Calls act(row, g, valid) for `rows` rows with G lanes each. All lanes of a warp call it, since act may contain
// shuffles; lanes beyond the last row get valid = false.
template <int G, class Do> __device__ __forceinline__ void each_row(int rows, int threads, const Do& act) {
  for (int base = threadIdx.x & ~31; base < rows * G; base += threads) {
    const int item = base + (threadIdx.x & 31), row = item / G;
    act(row < rows ? row : rows - 1, item % G, row < rows);
  }
}

// Copies the logits of `rows` positions from `first` on and of Heads heads from `head` on to (rows, Heads * K).
// Positions outside the sequence and heads beyond H become 0. LightConv has one row, the same at every position.
template <Case C, int Heads, class S>
__device__ __forceinline__ void stage_logits(const ConvArgs& args, S* to, int rows, int threads, int first, int head,
                                             int b) {
  constexpr int width = Heads * C.K;
  constexpr int W = !C.aligned ? 1 : smaller(power_of_two_in(width, 16 / sizeof(S)), power_of_two_in(C.H * C.K, 8));
  const int present = smaller(Heads, C.H - head) * C.K;
  const S* logits = static_cast<const S*>(args.logits) + ((C.dynamic ? row_of(args, 0, b) : 0) * C.H + head) * C.K;
  const long long stride = C.dynamic ? static_cast<long long>(args.step) * C.H * C.K : 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * (width / W); i += threads) {
    const int row = i / (width / W), j = i % (width / W) * W, t = first + row;
    const bool inside = j < present && (!C.dynamic || (t >= 0 && t < args.T));
    vec<S, W>(to + row * width + j) = inside ? load_fixed<S, W>(logits + t * stride + j) : zeros<S, W>();
  }
}

}  // namespace lightconv::cuda
