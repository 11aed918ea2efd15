// The arguments of the kernels beside the paper's operators, as cuda/args.h has them.
#pragma once

namespace lightconv::cuda {

constexpr int LOSS_THREADS = 256;  // of a row of logits

// glu: x (rows, 2C) with rows = T * B, mask (B, T); out (rows, C), or grad (rows, C) to out (rows, 2C)
struct GluArgs {
  const void* x;
  const void* grad;
  const bool* mask;
  void* out;
  long long T, B, C;
};

// smoothed_nll: log_sums (N,), terms (N, 2) and their sums (2,) from logits (N, V), rows `stride` apart, and target (N,);
// backward: grad, one number, to out (N, V). terms: -log p(target), and the sum of -log p over all types.
struct LossArgs {
  const void* logits;
  const long long* target;
  double* log_sums;
  double* terms;
  double* sums;
  const void* grad;
  void* out;
  long long N, V, stride, ignore;
  double nll_share, all_share;
};

}  // namespace lightconv::cuda
