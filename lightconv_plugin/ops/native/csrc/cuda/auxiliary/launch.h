// The operators beside the paper's on raw device pointers, as cuda/launch.h has them.
#pragma once

#include "cuda/launch.h"

namespace lightconv::cuda {

// x (T, B, 2C), mask (B, T) or null, out (T, B, C); backward: grad (T, B, C), out (T, B, 2C).
void glu(const Place& place, Type type, long long T, long long B, long long C, const void* x, const bool* mask, void* out);
void glu_backward(const Place& place, Type type, long long T, long long B, long long C, const void* grad, const void* x,
                  const bool* mask, void* out);

// Rows of logits (N, V), `stride` apart, and their targets (N,); see loss.cuh.
struct Rows {
  long long N, V, stride, ignore;
  Type type;
  const void* logits;
  const long long* target;
};

// log_sums (N,); sums: of -log p(target), and of -log p over all types. A target outside of 0..V-1 gives NaN.
void loss(const Place& place, const Rows& rows, double* log_sums, double* sums);
// out (N, V): the gradient of grad * (nll_share * sums[0] + all_share * sums[1]); grad: float32, or float64 as the logits.
void loss_backward(const Place& place, const Rows& rows, const void* grad, const double* log_sums, double nll_share,
                   double all_share, void* out);

}  // namespace lightconv::cuda
