// Both gradients of a 16-bit convolution from one reading of x and of the gradient: grad_x as band.cuh has it, and from
// the same rows the products that grad_weight.cuh goes on with. For kernels of one band, where a block has room for both.
#pragma once

#include "cuda/band.cuh"
#include "cuda/grad_weight.cuh"

namespace lightconv::cuda {

// The products of a warp's 16 positions of the gradient and the input rows that they meet, over all channels of a head.
// The warps of a wide head's parts share the rows.
template <Case C> struct BandProducts {
  using S = typename Scalar<C.type>::type;
  static constexpr BandTile tile = band_tile(C);
  static constexpr int steps = ceil_div(tile.steps, tile.parts);
  float sum[steps][2][4];
  int first;  // of the warp's rows

  __device__ __forceinline__ explicit BandProducts(int part) : first(part * steps * 16) {}

  // grad: the warp's positions; x: the first row that they meet; both at the head's first channel
  __device__ __forceinline__ void multiply(const unsigned char* grad, const unsigned char* x) {
    const int lane = threadIdx.x % 32, at = lane % 16 * tile.row_bytes + lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < steps; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[n][i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int c = 0; c < tile.parts * tile.chunk * 2; c += 32) {
      Word a[4];
      load_matrices<false>(a, grad + at + c);
#pragma unroll
      for (int n = 0; n < steps; ++n) {
        if (tile.steps % tile.parts != 0 && first / 16 + n >= tile.steps) continue;
        Word b[4];
        load_matrices<false>(b, x + (first + n * 16) * tile.row_bytes + at + c);
        mma<S>(sum[n][0], a, {b[0], b[2]});
        mma<S>(sum[n][1], a, {b[1], b[3]});
      }
    }
  }

  // Is one not finite?
  __device__ __forceinline__ bool spoiled() const {
    float zero = 0.0f;
#pragma unroll
    for (int n = 0; n < steps; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) zero += sum[n][i / 4][i % 4] * 0.0f;
    return zero != 0.0f;
  }

  // act(position of the warp, tap, sum) on each; some taps are outside the band
  template <class Do> __device__ __forceinline__ void each(const Do& act) const {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < steps; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int position = g + i % 4 / 2 * 8;
        act(position, first + n * 16 + i / 4 * 8 + 2 * q + i % 2 - position, sum[n][i / 4][i % 4]);
      }
  }
};

template <Case C> __device__ __forceinline__ void backward(const ConvArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr BandTile tile = band_tile(C);
  const int before = C.K - 1 - args.padding_l;  // rows of the gradient before the block's own
  const int group = blockIdx.x % tile.groups, split = blockIdx.x / tile.groups;
  const int blocks = (args.T + C.positions - 1) / C.positions * args.B;
  unsigned char* band = shared + tile.band_offset;
  unsigned char* x = shared + tile.x_offset;
  unsigned char* logits = shared + tile.logits_offset;
  float* products = reinterpret_cast<float*>(x);
  float* totals = reinterpret_cast<float*>(shared + tile.totals_offset);
  const BandWarp<C> warp;
  BandPlace at{};
  at.head = group * tile.heads, at.count = C.K;
  if constexpr (!C.dynamic) clear_totals<C, tile.products>(totals);

#pragma unroll 1
  for (int block = split; block < blocks; block += args.splits) {
    at.b = block % args.B, at.t0 = block / args.B * C.positions, at.first = at.t0 - before;
    const bool anew = per_position(C) || block == split;
    if (C.dynamic || anew) stage_logits<C>(args, at, logits);
    finish_group();
    stage_inputs<C>(args, at, args.grad, at.first, shared);
    finish_group();
    stage_inputs<C>(args, at, args.x, at.t0 - args.padding_l, x);
    finish_group();
    if (anew) {
      clear_band<C>(band);
      wait_for_copies<2>();
      __syncthreads();
      write_band<C>(args, at, logits, band);
    }
    wait_for_copies<1>();
    __syncthreads();
    BandSums<C> sums;
    sums.multiply(warp.band(band), warp.rows(shared), C.K);
    const BandResults<C> results = sums.results();
    wait_for_copies<0>();
    __syncthreads();
    BandProducts<C> pairs(warp.slice % tile.parts);
    const int of_head = warp.h * tile.parts * tile.chunk * 2;
    pairs.multiply(shared + (warp.m + before) * tile.row_bytes + of_head, x + warp.m * tile.row_bytes + of_head);
    __syncthreads();
    results.write(warp.rows(shared));
    __syncwarp();
    warp.store_rows(args, at, warp.rows(shared));
    float* own_products = products + (warp.m * tile.heads + warp.h) * tile.products.stride;
    pairs.each([&](int position, int j, float sum) {
      if (static_cast<Word>(j) < C.K) own_products[position * tile.heads * tile.products.stride + j] = sum;
    });
    if (pairs.spoiled()) {  // by products with the zeros beside the sequence, where something is not finite
      pairs.each([&](int position, int j, float) {
        const int t = at.t0 + warp.m + position, from = t + j - args.padding_l;
        if (static_cast<Word>(j) < C.K && (t >= args.T || static_cast<Word>(from) >= args.T))
          own_products[position * tile.heads * tile.products.stride + j] = 0.0f;
      });
    }
    if constexpr (C.dynamic) {
      const auto logits_of = [&](int item) {
        const int row = item / tile.heads, h = item % tile.heads;
        const unsigned char* from = logits + ((row + before) * tile.heads + h) * tile.logit_row_bytes;
        return reinterpret_cast<const S*>(from) + logit_start<C>(logit_row<C>(args, at, at.t0 + row, h), 0);
      };
      dynamic_rows<C, tile.products>(args, products, nullptr, logits_of, at.t0, at.head, at.b, 0, C.K, true);
    } else {
      light_rows<C, tile.products>(args, products, totals, at.t0, at.head, at.b, 0, C.K);
    }
  }
  if constexpr (!C.dynamic) store_totals<C, tile.products>(args, totals, split, at.head, 0, C.K);
}

}  // namespace lightconv::cuda
