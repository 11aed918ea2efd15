// Kernels for single rows of K numbers: row_sums, the sums of softmax for kernels that process rows in several bands,
// and `finish`, the second stage of LightConv's weight gradient.
#pragma once

#include "cuda/weights.cuh"

namespace lightconv::cuda {

// One warp per row of K logits: computes the largest logit and 1 / the sum of exp(logit - largest), for kernels that
// process the row in several bands. The row is read once, in vectors, from the multiple of the vector size before its
// start.
template <Case C> __device__ __forceinline__ void row_sums(const RowSumsArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  constexpr int V = C.aligned ? 16 / size_of(C.type) : 1;
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const long long start = row * args.K;
  const int lane = threadIdx.x % 32, before = static_cast<int>(start % V), end = before + static_cast<int>(args.K);
  if (row >= args.rows) return;
  const S* logits = static_cast<const S*>(args.logits) + start - before;
  float most = -__int_as_float(0x7f800000), sum = 0.0f;
  for (int i = lane * V; i < end; i += 32 * V) {
    float value[V];
    if (start - before + i + V <= args.rows * args.K) widen(load_fixed<S, V>(logits + i), value);
    else
      for (int v = 0; v < V; ++v) value[v] = i + v < end ? widen(logits[i + v]) : 0.0f;
    float top = most;
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i + v >= before && i + v < end) top = fmaxf(top, value[v]);
    if (top > most) sum *= exponential(most - top);
    most = top;
    const float finite = most == -__int_as_float(0x7f800000) ? 0.0f : most;  // if all logits so far are -inf
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i + v >= before && i + v < end) sum += exponential(value[v] - finite);
  }
  const float of_row = lanes_max<32>(most);
  sum = lanes_sum<32>(sum * (most == of_row ? 1.0f : exponential(most - of_row)));
  if (lane < 2) args.sums[2 * row + lane] = lane == 0 ? of_row : 1.0f / sum;
}

// Second stage of LightConv's weight gradient, one block per head: its warps add up the partial sums, always in the
// same order, and the first warp computes the derivative of softmax.
template <Case C> __device__ __forceinline__ void finish(const FinishArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr int taps = ceil_div(C.K, 32), warps = finish_warps(C.K);
  const int h = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* of_warps = reinterpret_cast<float*>(shared);
  const float* partial = args.partial + static_cast<long long>(h) * C.K;
  const S* logits = static_cast<const S*>(args.logits) + static_cast<long long>(h) * C.K;
  float sum[taps] = {}, weight[taps] = {}, most = -__int_as_float(0x7f800000);
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    const int j = i * 32 + lane;
    if (j >= C.K) continue;
#pragma unroll 8
    for (int split = warp; split < args.splits; split += warps)
      sum[i] += partial[static_cast<long long>(split) * C.H * C.K + j];
    if constexpr (warps > 1) of_warps[warp * C.K + j] = sum[i];
    if constexpr (C.softmax) {  // without softmax the gradient, of type S, is in float32, and the logits may not be
      weight[i] = widen(logits[j]);
      most = weight[i] > most ? weight[i] : most;
    }
  }
  if constexpr (warps > 1) {
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int i = 0; i < taps; ++i) {
      const int j = i * 32 + lane;
      if (j >= C.K) continue;
      for (int other = 1; other < warps; ++other) sum[i] += of_warps[other * C.K + j];
    }
  }
  if constexpr (C.softmax) {
    most = lanes_max<32>(most);
    float total = 0.0f, dot = 0.0f;
    for (int i = 0; i < taps; ++i) {
      weight[i] = i * 32 + lane < C.K ? exponential(weight[i] - most) : 0.0f;
      total += weight[i];
    }
    total = lanes_sum<32>(total);
    for (int i = 0; i < taps; ++i) dot += (weight[i] /= total) * sum[i];
    dot = lanes_sum<32>(dot);
    for (int i = 0; i < taps; ++i) sum[i] = weight[i] * (sum[i] - dot);
  }
  for (int i = 0; i < taps; ++i)
    if (i * 32 + lane < C.K)
      static_cast<S*>(args.grad_logits)[static_cast<long long>(h) * C.K + i * 32 + lane] = narrow<S>(sum[i]);
}

}  // namespace lightconv::cuda
