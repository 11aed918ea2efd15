// Arguments of the kernels: one struct per kernel, passed by value. The launcher and the device share the definitions.
#pragma once

#include "cuda/case.h"

namespace lightconv::cuda {

struct DropConnect {
  const long long* seed;   // in device memory, so that a replayed graph draws new masks
  unsigned int threshold;  // round(p * 2^32); a weight is dropped if its random word is below
  double scale;            // 1 / (1 - p)
};

// Position t of sentence b is row t * step + b * sentence of x, of tensors of its shape, and of DynamicConv's logits:
// step, sentence = B, 1 for (T, B, C), and 1, T for (B, T, C). DropConnect draws its mask from the index
// n = (t * B + b) * H + h, which does not depend on the layout in memory.

// A convolution and its gradients. Forward: from x and logits to out (T, B, C). grad_x alone: x is the gradient of the
// result, and out is grad_x. The gradient of the weights, alone or together with grad_x, also reads grad. DynamicConv's
// is written to grad_logits; LightConv's to partial (splits, H, K), where each split is a sum over some of the
// positions.
struct ConvArgs {
  const void* x;
  const void* logits;
  const void* grad;
  void* out;
  void* grad_logits;
  float* partial;
  float* row_sums;  // if there are several bands, see row_sums in rows.cuh
  DropConnect dropconnect;
  int T, B, padding_l, splits;
  int step, sentence;
};

// row_sums: sums (rows, 2) of logits (rows, K), rows = H or T * B * H
struct RowSumsArgs {
  const void* logits;
  float* sums;
  long long rows, K;
};

// finish: from partial (splits, H, K) to LightConv's gradient (H, K), which is in float32 if there is no softmax
struct FinishArgs {
  const float* partial;
  const void* logits;
  void* grad_logits;
  int splits;
};

struct StepArgs {
  const void* x;       // (N, C)
  const void* logits;  // (H, K) or (N, H, K)
  void* ring;          // (K, M, C)
  int* ancestors;      // (K, N)
  long long* position;
  void* out;           // (N, C)
  int N, M;
};

// ---- Arguments of the fused kernels ----

constexpr int LOSS_THREADS = 256;  // per row of logits

// glu: from x (rows, 2C), rows = T * B, and mask (B, T) to out (rows, C). glu_backward: from these and grad (rows, C)
// to out (rows, 2C).
struct GluArgs {
  const void* x;
  const void* grad;
  const bool* mask;
  void* out;
  long long T, B, C;
};

// smoothed_nll: from logits (N, V), whose rows are `stride` numbers apart, and target (N,) to log_sums (N,), terms
// (N, 2) and the sums of the terms over the rows, sums (2,). The terms of a row are -log p(target) and the sum of
// -log p over the vocabulary. smoothed_nll_backward: from grad, one number, to out (N, V).
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

constexpr int NORM_THREADS = 256, NORM_VALUES = 16, NORM_WIDEST = 8 * 32 * NORM_VALUES;

// Tiles of residual_norm for rows of C = Case::R numbers. `warps` warps work on a row. A thread holds up to NORM_VALUES
// numbers of it, in `vectors` vectors of `vector` numbers. A block works on `rows` rows at a time.
struct NormTile {
  int vector, vectors, warps, rows;
};

constexpr NormTile norm_tile(const Case& c) {
  NormTile tile{vector_of(c), 0, 1, 0};
  while (c.R > tile.warps * 32 * NORM_VALUES) tile.warps *= 2;
  tile.vectors = ceil_div(c.R, tile.warps * 32 * tile.vector);
  tile.rows = NORM_THREADS / 32 / tile.warps;
  return tile;
}

// residual_norm: from x and y (N, C) to z = x + dropout(y), out = weight * (z - mean) * rstd + bias, and stats (2, N),
// the mean and rstd of the rows of z in the type of sums (Scalar::sum). Without dropout, dropout.seed is null.
struct NormArgs {
  const void* x;
  const void* y;
  const void* weight;
  const void* bias;
  void* z;
  void* out;
  void* stats;
  DropConnect dropout;
  double eps;
  long long N, C;
};

// residual_norm_backward: from grad, the gradient of out, to grad_x and, with dropout, grad_y (N, C), and to partial
// (splits, 2, C) in the type of sums. residual_norm_sums: from partial to grad_affine (2, C), the gradients of weight
// and bias.
struct NormGradArgs {
  const void* grad;
  const void* z;
  const void* weight;
  const void* stats;
  void* grad_x;
  void* grad_y;
  void* partial;
  void* grad_affine;
  DropConnect dropout;
  long long N, C, splits;
};

constexpr int ATTEND_THREADS = 128, ATTEND_WIDEST = 1024;  // a warp per row; channels of a head

// attend: from query (N, H * R), keys and values (sentences, S, H * R), padding (sentences, S) or null, and sentence
// (N,), the sentence of each row, to out (N, H * R). The product of a query and a key is multiplied by `scale`.
struct AttendArgs {
  const void* query;
  const void* keys;
  const void* values;
  const bool* padding;
  const long long* sentence;
  void* out;
  double scale;
  long long N, H, S, sentences;
};

constexpr int CANDIDATE_THREADS = 256, MOST_CANDIDATES = 32, MOST_BEAMS = 32;

// step_candidates: from logits (N, V), scores (N,) and limits (3,) to kept and kept_words (N, K), the best of each row.
// limits: the step, the first step in which hypotheses may end, and the first in which they must.
// step_candidates_finish: from kept and kept_words to best, words and parents (N / beams, K).
struct CandidateArgs {
  const void* logits;
  const float* scores;
  const long long* limits;
  float* kept;
  long long* kept_words;
  float* best;
  long long* words;
  long long* parents;
  double temperature, unk_penalty;
  long long N, V, beams, pad, eos, unk;
};

constexpr int SEARCH_THREADS = 256;

// search_step: values, candidates (words) and origins (N / beams, 2 * beams); the other tensors are those of ops.Beams,
// with N rows.
struct SearchArgs {
  const float* values;
  const long long* candidates;
  const long long* origins;
  long long* limits;
  long long* clock;
  const double* penalties;
  long long* newest;
  float* scores;
  long long* order;
  long long* words;
  long long* parents;
  float* sums;
  long long* steps;
  long long* rows;
  float* totals;
  double* ranks;
  bool* open;
  int* ancestors;
  long long N, eos;
  int beams, slots;
  bool stepwise;
};

// Indices into the vectors of ops/fused/update.py, which has the same lists.
enum Control { LOSS_SCALE, ITERATION, LAST_OVERFLOW, LAST_RESCALE, OVERFLOWS, STEPS, SKIPPED, CONTROLS };
enum Outcome { APPLIED, NORM, FLOOR, MULTIPLY, STEP_SIZE, DECAY, OUTCOMES };
enum Setting { SCALED, CLIP, TOLERANCE, LEAST, LOWEST, WINDOW, BETA1, BETA2, WEIGHT_DECAY, SETTINGS };

// update_decide: norm and sample_size are one number each. orders: the number of skipped updates that the host knew of,
// then a learning rate for each number of further skipped updates, from 0 on.
struct DecideArgs {
  const float* norm;
  const double* sample_size;
  const double* orders;
  const double* settings;
  double* control;
  double* outcome;
};

// adam_step: param, exp_avg and exp_avg_sq (N,) in float32; grad and weight (N,) in the model's type. weight: the
// model's copy of param.
struct AdamArgs {
  float* param;
  void* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* weight;  // null if the model uses param itself
  const double* outcome;
  long long N;
  double beta1, beta2, eps;
};

}  // namespace lightconv::cuda
