// Both gradients of a 16-bit convolution in one kernel, which reads x and the gradient once. grad_x is computed as in
// band.cuh. The products for the gradient of the weights are computed from the same rows and then treated as in
// grad_weight.cuh. For kernels of one band, if the shared memory of a block is large enough for both.
#pragma once

#include "cuda/band.cuh"
#include "cuda/grad_weight.cuh"

namespace lightconv::cuda {

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
    // The warps of a wide head, one for each part, split the input rows here: each takes all channels.
    constexpr int steps = ceil_div(tile.steps, tile.parts);
    const int own_step = warp.slice % tile.parts * steps, of_head = warp.h * tile.parts * tile.chunk * 2;
    MmaProducts<S, steps> pairs;
    pairs.add(shared + (warp.m + before) * tile.row_bytes + of_head,
              x + (warp.m + own_step * 16) * tile.row_bytes + of_head, tile.row_bytes, tile.parts * tile.chunk * 2,
              tile.steps % tile.parts == 0 ? steps : tile.steps - own_step);
    __syncthreads();
    results.write(warp.rows(shared));
    __syncwarp();
    warp.store_rows(args, at, warp.rows(shared));
    float* own_products = products + (warp.m * tile.heads + warp.h) * tile.products.stride;
    pairs.each([&](int position, int row, float sum) {
      const int j = own_step * 16 + row - position;
      if (static_cast<Word>(j) < C.K) own_products[position * tile.heads * tile.products.stride + j] = sum;
    });
    if (pairs.spoiled()) {  // 0 beside the sequence times a number that is not finite gives NaN, but must give 0
      pairs.each([&](int position, int row, float) {
        const int j = own_step * 16 + row - position, t = at.t0 + warp.m + position, from = t + j - args.padding_l;
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
