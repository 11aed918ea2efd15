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

// The places of numbers in the vectors of ops/auxiliary/update.py, which keeps the same lists.
enum Control { LOSS_SCALE, ITERATION, LAST_OVERFLOW, LAST_RESCALE, OVERFLOWS, STEPS, SKIPPED, CONTROLS };
enum Outcome { APPLIED, NORM, FLOOR, MULTIPLY, STEP_SIZE, DECAY, OUTCOMES };
enum Setting { SCALED, CLIP, TOLERANCE, LEAST, LOWEST, WINDOW, BETA1, BETA2, WEIGHT_DECAY, SETTINGS };

// update_decide: one number each of norm and sample_size; orders (1 + the host's lead,)
struct DecideArgs {
  const float* norm;
  const double* sample_size;
  const double* orders;
  const double* settings;
  double* control;
  double* outcome;
};

// adam_step: param, exp_avg, exp_avg_sq (N,) and grad (N,) of the model's type; weight (N,): the model's copy
struct AdamArgs {
  float* param;
  void* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* weight;  // or null: the parameters are the model's own
  const double* outcome;
  long long N;
  double beta1, beta2, eps;
};

}  // namespace lightconv::cuda
