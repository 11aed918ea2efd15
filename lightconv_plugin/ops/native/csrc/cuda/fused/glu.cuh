// GLU and padding mask in one launch: (T, B, 2C) -> (T, B, C), 0 where mask (B, T) is true; and its gradient. One
// thread computes V neighbouring channels; Case::R is C here.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

template <Case C, bool Backward> __device__ __forceinline__ void glu_rows(const GluArgs& args) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr int V = vector_of(C);
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, lanes = C.R / V;
  if (i >= args.T * args.B * lanes) return;
  const long long row = i / lanes, c = i % lanes * V;
  const bool masked = C.mask && args.mask[row % args.B * args.T + row / args.B];
  const S* x = static_cast<const S*>(args.x) + row * 2 * C.R + c;
  A value[V] = {}, gate[V] = {};
  if (!masked) {
    widen(load_fixed<S, V>(x), value);
    widen(load_fixed<S, V>(x + C.R), gate);
    if constexpr (Backward) {
      A grad[V];
      widen(load_fixed<S, V>(static_cast<const S*>(args.grad) + row * C.R + c), grad);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A open = A(1) / (A(1) + exponential(-gate[v]));
        gate[v] = grad[v] * value[v] * open * (A(1) - open);
        value[v] = grad[v] * open;
      }
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] = value[v] / (A(1) + exponential(-gate[v]));
    }
  }
  S* out = static_cast<S*>(args.out) + row * (Backward ? 2 : 1) * C.R + c;
  store<S, V>(out, narrow<S, V>(value));
  if constexpr (Backward) store<S, V>(out + C.R, narrow<S, V>(gate));
}

template <Case C> __device__ __forceinline__ void glu(const GluArgs& args, unsigned char*) { glu_rows<C, false>(args); }
template <Case C> __device__ __forceinline__ void glu_backward(const GluArgs& args, unsigned char*) { glu_rows<C, true>(args); }

}  // namespace lightconv::cuda
