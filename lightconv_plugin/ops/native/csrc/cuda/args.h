// The arguments of the kernels, one struct each, passed by value: the same bytes for the launcher and the device.
#pragma once

#include "cuda/case.h"

namespace lightconv::cuda {

struct DropConnect {
  const long long* seed;   // device memory, so that a replayed graph draws anew
  unsigned int threshold;  // round(p * 2^32): a word below it drops its weight
  double scale;            // 1 / (1 - p)
};

// Position t of sentence b is row t * step + b * sentence of x, of what has its shape, and of DynamicConv's logits:
// step, sentence = B, 1 for (T, B, C), and 1, T for (B, T, C). What n stands for, (t * B + b) * H + h, is not of memory:
// DropConnect draws by it, the same in every layout.

// A convolution and its gradients. Of x and logits: out (T, B, C); for grad_x alone x is the gradient. Of the gradient
// too: the logits' gradient, dynamic, or LightConv's sums over the positions of a block, partial (splits, H, K).
struct ConvArgs {
  const void* x;
  const void* logits;
  const void* grad;
  void* out;
  void* grad_logits;
  float* partial;
  float* row_sums;  // for several bands, see row_sums in rows.cuh
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

// finish: LightConv's gradient (H, K) from partial (splits, H, K); without softmax in float32
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

// ---- The fused kernels' ----

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

constexpr int NORM_THREADS = 256, NORM_VALUES = 16, NORM_WIDEST = 8 * 32 * NORM_VALUES;

// How rows of C = Case::R numbers are cut for residual_norm: a row has `warps` warps, a thread up to NORM_VALUES numbers
// of it, in `vectors` vectors, and a block has `rows` rows at a time.
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

// residual_norm: x and y (N, C) to z = x + dropout(y), out = weight * (z - mean) * rstd + bias, and stats (2, N): mean and
// rstd of the rows of z, in the type of sums. Without dropout its seed is null.
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

// residual_norm_backward: grad, of out, to grad_x and, with dropout, grad_y (N, C); to partial (splits, 2, C), in the type
// of sums, and from there to grad_affine (2, C): the gradients of weight and bias.
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

constexpr int ATTEND_THREADS = 128, ATTEND_WIDEST = 1024;  // a warp a row; channels of a head

// attend: query (N, H * R), keys and values (sentences, S, H * R), padding (sentences, S) or null, sentence (N,), to out as
// the query. scale: of a query's product with a key.
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

// step_candidates: logits (N, V), scores (N,), limits (3,): the step, and the first that may and that must end; by way of
// kept (N, K), of each row, to best, words and parents (N / beams, K)
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

// search_step: values, candidates (words) and origins (N / beams, 2 * beams); the others as ops.Beams has them, N rows
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

// The places of numbers in the vectors of ops/fused/update.py, which keeps the same lists.
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
