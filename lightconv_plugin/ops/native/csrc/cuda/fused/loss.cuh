// Label-smoothed cross entropy of rows of logits (N, V), without storing log-probabilities; one block per row. With s
// bytes per logit the forward pass reads N * V * s bytes, and the backward pass reads and writes as many. Rows whose
// target is `ignore` are not read. All sums are taken in the same order every time.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

// exp(value - most), where `most` is not less than value; 0, and not NaN, where both are -inf.
template <class A> __device__ __forceinline__ A exp_below(A value, A most) {
  return exponential(value - (most == -__int_as_float(0x7f800000) ? A(0) : most));
}

// A thread's sum of exponentials is relative to its largest logit so far, and is rescaled when a larger one comes.
template <Case C> __device__ __forceinline__ void smoothed_nll(const LossArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int W = vector_of(C), warps = LOSS_THREADS / 32;
  const long long n = blockIdx.x, target = args.target[n];
  double* terms = args.terms + 2 * n;
  if (target == args.ignore) {
    if (threadIdx.x == 0) args.log_sums[n] = terms[0] = terms[1] = 0.0;
    return;
  }
  const S* row = static_cast<const S*>(args.logits) + n * args.stride;
  A most = -__int_as_float(0x7f800000), total = 0, plain = 0;
  const A first = widen(row[0]), base = first - first == A(0) ? first : A(0);  // for precision: `plain` sums x - base
#pragma unroll 4
  for (long long v = threadIdx.x * W; v < args.V; v += LOSS_THREADS * W) {
    A x[W], top = most;
    widen(load_fixed<S, W>(row + v), x);
#pragma unroll
    for (int w = 0; w < W; ++w) top = x[w] > top ? x[w] : top;
    total *= exp_below(most, top);
#pragma unroll
    for (int w = 0; w < W; ++w) total += exp_below(x[w], top), plain += x[w] - base;
    most = top;
  }
  const A top = lanes_max<32>(most);
  total = lanes_sum<32>(total * exp_below(most, top)), plain = lanes_sum<32>(plain);
  A* kept = reinterpret_cast<A*>(shared);  // (warps, 3)
  if (threadIdx.x % 32 == 0) {
    A* own = kept + threadIdx.x / 32 * 3;
    own[0] = top, own[1] = total, own[2] = plain;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  most = top;
  for (int i = 1; i < warps; ++i) most = kept[i * 3] > most ? kept[i * 3] : most;
  A exps = 0;
  double all = 0.0;
  for (int i = 0; i < warps; ++i) exps += kept[i * 3 + 1] * exp_below(kept[i * 3], most), all += kept[i * 3 + 2];
  const double log_sum = static_cast<double>(most) + static_cast<double>(log(exps));
  args.log_sums[n] = log_sum;
  // A target outside of 0..V-1 gives NaN: to raise an error, the host would have to wait for the device.
  terms[0] = target >= 0 && target < args.V ? log_sum - static_cast<double>(widen(row[target])) : __int_as_float(0x7fffffff);
  terms[1] = static_cast<double>(args.V) * (log_sum - static_cast<double>(base)) - all;
}

// Sums both terms over the rows, in one block.
template <Case C> __device__ __forceinline__ void smoothed_nll_sum(const LossArgs& args, unsigned char* shared) {
  double* kept = reinterpret_cast<double*>(shared);  // (warps, 2)
  double nll = 0.0, all = 0.0;
#pragma unroll 8
  for (long long n = threadIdx.x; n < args.N; n += LOSS_THREADS) nll += args.terms[2 * n], all += args.terms[2 * n + 1];
  nll = lanes_sum<32>(nll), all = lanes_sum<32>(all);
  if (threadIdx.x % 32 == 0) kept[threadIdx.x / 32 * 2] = nll, kept[threadIdx.x / 32 * 2 + 1] = all;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  double sum = 0.0;
  for (int i = 0; i < LOSS_THREADS / 32; ++i) sum += kept[i * 2 + threadIdx.x];
  args.sums[threadIdx.x] = sum;
}

// out (N, V) = grad * (softmax * (nll_share + all_share * V) - all_share - (at the target) nll_share)
template <Case C> __device__ __forceinline__ void smoothed_nll_backward(const LossArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int W = vector_of(C);
  const long long n = blockIdx.x, target = args.target[n];
  const bool counts = target != args.ignore;
  const S* row = static_cast<const S*>(args.logits) + n * args.stride;
  S* out = static_cast<S*>(args.out) + n * args.V;
  const A grad = *static_cast<const A*>(args.grad);
  const A extra = grad * A(args.nll_share), less = grad * A(args.all_share);
  A times = extra + less * A(args.V);
  if (target < 0 || target >= args.V) times = __int_as_float(0x7fffffff);
  // in two parts, since float32 would round the log-sum of large logits
  const A high = A(args.log_sums[n]), low = A(args.log_sums[n] - static_cast<double>(high));
#pragma unroll 4
  for (long long v = threadIdx.x * W; v < args.V; v += LOSS_THREADS * W) {
    A value[W] = {};
    if (counts) {
      A x[W];
      widen(load_fixed<S, W>(row + v), x);
#pragma unroll
      for (int w = 0; w < W; ++w)
        value[w] = times * exponential(x[w] - high - low) - less - (v + w == target ? extra : A(0));
    }
    store<S, W>(out + v, narrow<S, W>(value));
  }
}

}  // namespace lightconv::cuda
