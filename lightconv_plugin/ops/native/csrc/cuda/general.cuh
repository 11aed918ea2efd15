// What the cut kernels do not take, at any width and in float64 too: weights once to memory, then one thread an output.
// Slower, never wrong. Also `finish`, the second stage of LightConv's weight gradient.
#pragma once

#include "cuda/weights.cuh"

namespace lightconv::cuda {

// One warp normalises one row of K logits.
template <Case C> __device__ __forceinline__ void general_weights(const GeneralArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= (C.dynamic ? args.T * args.B * args.H : args.H)) return;
  const S* logits = static_cast<const S*>(args.logits) + row * args.K;
  A* weight = static_cast<A*>(args.weight) + row * args.K;
  if constexpr (!C.softmax) {
    for (long long j = lane; j < args.K; j += 32) weight[j] = widen(logits[j]);
  } else {
    A most = -__int_as_float(0x7f800000);
    for (long long j = lane; j < args.K; j += 32) most = widen(logits[j]) > most ? widen(logits[j]) : most;
    most = lanes_max<32>(most);
    A sum = 0;
    for (long long j = lane; j < args.K; j += 32) sum += exponential(widen(logits[j]) - most);
    sum = lanes_sum<32>(sum);
    for (long long j = lane; j < args.K; j += 32) weight[j] = exponential(widen(logits[j]) - most) / sum;
  }
}

// One warp a row of K logits: its largest and 1 / the sum of exps below it, for kernels that take the row in parts. It is
// read once, in vectors from the multiple of their size before it.
template <Case C> __device__ __forceinline__ void row_sums(const GeneralArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  constexpr int V = C.aligned ? 16 / size_of(C.type) : 1;
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const long long rows = C.dynamic ? args.T * args.B * args.H : args.H, start = row * args.K;
  const int lane = threadIdx.x % 32, before = static_cast<int>(start % V), end = before + static_cast<int>(args.K);
  if (row >= rows) return;
  const S* logits = static_cast<const S*>(args.logits) + start - before;
  float most = -__int_as_float(0x7f800000), sum = 0.0f;
  for (int i = lane * V; i < end; i += 32 * V) {
    float value[V];
    if (start - before + i + V <= rows * args.K) widen(load_fixed<S, V>(logits + i), value);
    else
      for (int v = 0; v < V; ++v) value[v] = i + v < end ? widen(logits[i + v]) : 0.0f;
    float top = most;
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i + v >= before && i + v < end) top = fmaxf(top, value[v]);
    if (top > most) sum *= exponential(most - top);
    most = top;
    const float finite = most == -__int_as_float(0x7f800000) ? 0.0f : most;  // where all so far are -inf
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i + v >= before && i + v < end) sum += exponential(value[v] - finite);
  }
  const float of_row = lanes_max<32>(most);
  sum = lanes_sum<32>(sum * (most == of_row ? 1.0f : exponential(most - of_row)));
  if (lane < 2) static_cast<float*>(args.weight)[2 * row + lane] = lane == 0 ? of_row : 1.0f / sum;
}

// One thread an output; turned round for grad_x, where args.x is the gradient.
template <Case C> __device__ __forceinline__ void general_conv(const GeneralArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  const long long channels = args.H * args.R, i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= args.T * args.B * channels) return;
  const long long c = i % channels, row = i / channels, h = c / args.R;
  const long long t = row / args.step % args.T, b = row / args.sentence % args.B;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  const S* x = static_cast<const S*>(args.x) + c;
  A sum = 0;
  for (long long j = 0; j < args.K; ++j) {
    const long long from = C.flip ? t - j + args.padding_l : t + j - args.padding_l;
    if (from < 0 || from >= args.T) continue;
    const long long own = C.flip ? from : t, weights = C.dynamic ? row_of(args, own, b) * args.H + h : h;
    A w = static_cast<const A*>(args.weight)[weights * args.K + j];
    if constexpr (C.drop) w *= keep_factor<A>(args.dropconnect, seed, (own * args.B + b) * args.H + h, j);
    sum += w * A(widen(x[row_of(args, from, b) * channels]));
  }
  static_cast<S*>(args.out)[i] = narrow<S>(sum);
}

// DynamicConv: one warp a row of logits, its lanes over the channels.
template <Case C> __device__ __forceinline__ void general_grad_dynamic(const GeneralArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  const long long n = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (n >= args.T * args.B * args.H) return;
  const long long h = n % args.H, row = n / args.H, channels = args.H * args.R;
  const long long t = row / args.step % args.T, b = row / args.sentence % args.B;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  const S* grad = static_cast<const S*>(args.grad) + n * args.R;
  const A* weight = static_cast<const A*>(args.weight) + n * args.K;
  A* products = static_cast<A*>(args.products) + n * args.K;
  A dot = 0;
  for (long long j = 0; j < args.K; ++j) {
    const long long from = t + j - args.padding_l;
    A sum = 0;
    if (from >= 0 && from < args.T) {
      const S* x = static_cast<const S*>(args.x) + row_of(args, from, b) * channels + h * args.R;
      for (long long c = lane; c < args.R; c += 32) sum += A(widen(grad[c])) * A(widen(x[c]));
    }
    sum = lanes_sum<32>(sum);
    if constexpr (C.drop) sum *= keep_factor<A>(args.dropconnect, seed, (t * args.B + b) * args.H + h, j);
    dot += weight[j] * sum;
    if (lane == j % 32) products[j] = sum;
  }
  S* out = static_cast<S*>(args.out) + n * args.K;
  for (long long j = lane; j < args.K; j += 32)
    out[j] = narrow<S>(C.softmax ? weight[j] * (products[j] - dot) : products[j]);
}

// LightConv, first stage: a block has one head and every splits-th position, a thread one tap at a time.
template <Case C> __device__ __forceinline__ void general_grad_light(const GeneralArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  const long long h = blockIdx.x % args.H, split = blockIdx.x / args.H, channels = args.H * args.R;
  const unsigned long long seed = C.drop ? *args.dropconnect.seed : 0;
  for (long long j = threadIdx.x; j < args.K; j += blockDim.x) {
    A total = 0;
    for (long long n = split; n < args.T * args.B; n += args.splits) {
      const long long b = n % args.B, t = n / args.B, from = t + j - args.padding_l;
      if (from < 0 || from >= args.T) continue;
      const S* grad = static_cast<const S*>(args.grad) + row_of(args, t, b) * channels + h * args.R;
      const S* x = static_cast<const S*>(args.x) + row_of(args, from, b) * channels + h * args.R;
      A sum = 0;
      for (long long c = 0; c < args.R; ++c) sum += A(widen(grad[c])) * A(widen(x[c]));
      if constexpr (C.drop) sum *= keep_factor<A>(args.dropconnect, seed, n * args.H + h, j);
      total += sum;
    }
    static_cast<A*>(args.products)[(split * args.H + h) * args.K + j] = total;
  }
}

// LightConv, second stage: the warps of a head's block add the partial sums up, always in the same order, and the first
// goes back through the softmax.
template <Case C> __device__ __forceinline__ void finish(const FinishArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int taps = ceil_div(C.K, 32), warps = finish_warps(C.K);
  const int h = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A* of_warps = reinterpret_cast<A*>(shared);
  const A* partial = static_cast<const A*>(args.partial) + static_cast<long long>(h) * C.K;
  const S* logits = static_cast<const S*>(args.logits) + static_cast<long long>(h) * C.K;
  A sum[taps] = {}, weight[taps] = {}, most = -__int_as_float(0x7f800000);
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    const int j = i * 32 + lane;
    if (j >= C.K) continue;
#pragma unroll 8
    for (int split = warp; split < args.splits; split += warps)
      sum[i] += partial[static_cast<long long>(split) * C.H * C.K + j];
    if constexpr (warps > 1) of_warps[warp * C.K + j] = sum[i];
    if constexpr (C.softmax) {  // else they may be of a narrower type than the gradient
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
    A total = 0, dot = 0;
    for (int i = 0; i < taps; ++i) {
      weight[i] = i * 32 + lane < C.K ? exponential(weight[i] - most) : A(0);
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
