// The CPU kernels, compiled once for each vector width (vectors.cpp), and their arguments. A kernel works on a range of
// units or rows, with scratch memory from its caller. It calls nothing of torch, so that no torch code is compiled for
// a vector width that the machine may not have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lightconv {

enum class Scalar { f32, f64, bf16 };

// One convolution: x (T, B, C) and logits (H, K) or, if dynamic, (T, B, H, K). A row of x has C numbers, one of dynamic
// logits H * K numbers, and rows are contiguous. Position t of sentence b is row t * step + b * sentence of x, of the
// gradients and of dynamic logits. Packed sentences are (T, 1, C), where T counts the positions of all of them, and
// sentence b has the positions from offsets[b] to offsets[b + 1].
// Sums are accumulated in float64 for f64, otherwise in float32. This is the type A of the kernels.
struct Conv {
  int64_t T, B, C, H, K, padding_l;
  int64_t step, sentence;  // B, 1; if batch first, 1, T
  const void* state;       // the K - 1 inputs before position 0, with padding_l = K - 1; null: zeros
  int64_t state_step, state_sentence;  // as step and sentence, for the state and its gradient
  const int64_t* offsets;  // null if the sentences are not packed
  int64_t sentences;       // number of packed sentences
  bool dynamic, softmax;
  float dropconnect;  // probability of dropping; 0: none
  uint64_t seed;
  Scalar type;
  const void* x;
  const void* logits;
  const void* light;  // LightConv: the kernels (H, K) of type A, after the softmax if there is one
};

// Positions t to t + rows, or to the end of the sentence if that comes first, of sentences b to b_end (exclusive).
struct Piece {
  int64_t b, b_end, t, rows;
};

// The dimension that the lanes of a vector run along.
enum class Lanes {
  channels,           // of one head
  channels_of_heads,  // of several heads: LightConv without DropConnect, fewer channels per head than lanes
  heads,              // one channel of each head: one kernel per position, few channels per head, few taps
};

// The work of one pass is cut into units: a unit is a group of heads in a batch of sentences and a chunk of positions.
// The cut does not depend on the number of threads, so neither does the order in which anything is summed.
struct Units {
  int64_t chunks, rows;        // chunks of positions; positions per chunk, the last may have fewer
  int64_t batches, sentences;  // batches of (short) sentences; sentences per batch, the last may have fewer
  const Piece* pieces;         // packed: these replace chunks and batches; a piece has at most `rows` positions in all
  int64_t groups, heads;       // groups of heads; heads per group, the last may have fewer
  Lanes lanes;
  bool by_position;            // one kernel per position and head: DynamicConv, or LightConv with DropConnect
  int64_t count;               // groups * partials
  size_t scratch;              // bytes of scratch memory per thread
  int64_t partials;            // chunks * batches, or pieces; for each, LightConv's backward has a sum (H, K) of type A
};

struct Gradients {
  const void* out;       // the gradient of the result, (T, B, C)
  void* x;               // null if not needed
  void* state;           // null if not needed
  void* weight;          // DynamicConv: (T, B, H, K), null if not needed
  void* light_partials;  // LightConv: (Units::partials, H, K) of type A, zero at the start; null if not needed
};

// One position of a causal convolution for N hypotheses, whose past inputs are in a ring buffer.
struct Step {
  int64_t N, M, C, H, K;  // hypotheses, rows of a slot of the ring, channels, heads, taps
  int64_t slot, inputs;   // slot of the newest input; number of inputs including the newest, at most K
  bool dynamic, softmax;
  Scalar type;
  const void* x;       // (N, C)
  const void* weight;  // (H, K), or (N, H, K) where dynamic
  void* ring;          // (K, M, C)
  int32_t* ancestors;  // (K, N): for each slot, the row that holds a hypothesis's input
  void* out;           // (N, C)
};

// Dropout from x to y, in groups of 64 numbers, see fused/train.inl.
struct Dropout {
  Scalar type;
  const void* x;
  void* y;
  int64_t count;
  float probability;
  uint64_t seed;
};

// Rows of logits (N, V), and the target of each row, a vocabulary entry. Rows with a negative target do not count.
struct LossTask {
  int64_t V;
  Scalar type;
  const void* logits;
  const int64_t* target;
};

// gradient = scale * exp(logit - log_sum) - share, and less `extra` at the target. Rows with a negative target get 0.
struct LossGradient {
  const double* log_sums;
  double scale, share, extra;
  void* gradient;
};

// Attention of N queries, each over the S keys of one sentence.
struct Attention {
  int64_t N, S, C, H;
  Scalar type;
  const void* query;        // (N, C)
  const void* keys;         // (sentences, S, C)
  const void* values;       // (sentences, S, C)
  const bool* padding;      // (sentences, S), true at padding; null if there is none
  const int64_t* sentence;  // (N): the sentence of each query
  void* out;                // (N, C)
};

// The best continuations of each of N hypotheses, by log-probability plus the score so far.
struct Search {
  int64_t N, V, count;
  const float* logits;  // (N, V)
  const float* scores;  // (N)
  float temperature, unk_penalty;
  int64_t pad, unk, banned, only;  // pad and banned are never chosen; if `only` >= 0, no other token is
  float* values;                   // (N, count), the largest first, then -inf if there are fewer
  int32_t* tokens;                 // (N, count)
};

// A weight (out, in), packed in the order in which the product of its number type reads it.
struct PackedWeight {
  enum class Type { none, f32, bf16, int8 } type;
  const void* data;  // f32: (ceil(out / 16), in, 16), padded with zeros; see bf16.h and int8.h for the others
};

// y = x weight^T + bias. If relu is true, negative results become 0.
struct Linear {
  int64_t rows, in, out;
  const float *x, *weight, *bias;  // (rows, in), (out, in), (out) or null
  PackedWeight packed;             // used instead of weight unless its type is none
  bool relu;
  float* y;  // (rows, out)
};

// Layer norm of C channels: scale (C), shift (C).
struct LayerNorm {
  const float *scale, *shift;
  float eps;
};

// Table of kernels: the paper's operators, and from `dropout` on the fused operators (fused/).
struct Kernels {
  int vector_bits;
  Units (*units)(const Conv&, bool backward);
  void (*forward)(const Conv&, const Units&, void* out, void* scratch, int64_t begin, int64_t end);
  void (*backward)(const Conv&, const Units&, const Gradients&, void* scratch, int64_t begin, int64_t end);
  void (*step)(const Step&, void* scratch, int64_t begin, int64_t end);
  void (*dropout)(const Dropout&, int64_t begin, int64_t end);  // groups of 64 numbers
  void (*loss_rows)(const LossTask&, double* rows, int64_t begin, int64_t end);  // four numbers per row
  void (*loss_gradient)(const LossTask&, const LossGradient&, int64_t begin, int64_t end);
  void (*attend)(const Attention&, void* scratch, int64_t begin, int64_t end);
  void (*best)(const Search&, void* scratch, int64_t begin, int64_t end);
  void (*linear)(const Linear&, int64_t begin, int64_t end);         // columns of y
  void (*linear_packed)(const Linear&, int64_t begin, int64_t end);  // pairs of blocks of 16 columns of y
  // for few rows, between the matrix products of a decoder block
  void (*gate)(const float* x, int64_t rows, int64_t C, float* y);  // (rows, 2C) to (rows, C)
  void (*normalize)(const LayerNorm&, const float* x, int64_t rows, int64_t C, float* y);
};

extern const Kernels baseline_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// Returns true if a head's channels fill a vector. Otherwise weights are laid out by channel.
static inline bool by_head(const Step& step) { return step.C / step.H >= 16; }

// Rows that `step` works on at once: their sums fill half of the L1 cache. One row if each row's weights are laid out
// by channel.
static inline int64_t block_rows(const Step& step) {
  const int64_t rows = step.C == 0 ? 1 : 4096 / step.C;
  return rows < 1 || (step.dynamic && !by_head(step)) ? 1 : rows;
}

// Scratch memory of `step`, in numbers of 8 bytes: kernels and sums of a block of rows, and weights by channel.
static inline int64_t step_scratch(const Step& step) {
  return block_rows(step) * (step.H * step.K + step.C) + (by_head(step) ? 0 : step.K * step.C);
}

// Scratch memory of `attend`, in numbers of 8 bytes: queries, sums and weights of the rows that are computed together,
// and the positions that are not padding.
static inline int64_t attend_scratch(const Attention& a) { return 5 * (2 * a.C + a.H * a.S) + a.S; }

// Scratch memory of `best`, in numbers of 8 bytes: the largest logit of each chunk.
constexpr int64_t kSearchChunk = 256;
static inline int64_t best_scratch(const Search& search) { return search.V / kSearchChunk + 1; }

const Kernels& kernels();  // the table in use: the widest vectors of the machine, unless cpu_vector_bits limits them

}  // namespace lightconv
