// The CPU kernels, once for each vector width (vectors.cpp), and what they are told. They work on a part of the units or
// rows, with scratch of their caller's, so that nothing of torch is compiled for a width that the machine may not have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lightconv {

enum class Scalar { f32, f64, bf16 };

// One convolution: x (T, B, C) and logits (H, K) or, dynamic, (T, B, H, K), whose rows of C and H * K numbers lie one
// behind another: position t of sentence b is row t * step + b * sentence of x, of the gradients and of dynamic logits.
// Packed sentences are (T, 1, C), T all positions, and sentence b is those from offsets[b] to offsets[b + 1].
// Sums are in float64 for f64, else in float32: the type A of the kernels.
struct Conv {
  int64_t T, B, C, H, K, padding_l;
  int64_t step, sentence;  // B, 1; batch first 1, T
  const void* state;       // null: zeros before position 0; else the K - 1 inputs there, padding_l being K - 1
  int64_t state_step, state_sentence;  // of the state and of its gradient
  const int64_t* offsets;  // null: not packed
  int64_t sentences;       // packed
  bool dynamic, softmax;
  float dropconnect;  // probability of dropping; 0: none
  uint64_t seed;
  Scalar type;
  const void* x;
  const void* logits;
  const void* light;  // LightConv: the kernels as they are used, (H, K), of type A
};

// Positions t to t + rows, or to their end if that comes first, of sentences b to b_end.
struct Piece {
  int64_t b, b_end, t, rows;
};

// What the lanes of a vector are.
enum class Lanes {
  channels,           // of one head
  channels_of_heads,  // of several: LightConv without DropConnect, a head having fewer channels than a vector
  heads,              // one channel of each: kernels for each position, of few channels a head and few taps
};

// The work of one pass is cut into units: some heads, some sentences, a chunk of time. How it is cut does not depend on
// the number of threads, so neither does the order in which anything is summed.
struct Units {
  int64_t chunks, rows;        // of time; rows of a chunk, the last may have fewer
  int64_t batches, sentences;  // of sentences, where they are short; sentences of a batch, the last may have fewer
  const Piece* pieces;         // packed: these in place of chunks and batches, of at most `rows` positions in all
  int64_t groups, heads;       // of heads; heads of a group, the last may have fewer
  Lanes lanes;
  bool by_position;            // each position has its kernels: DynamicConv's, or LightConv's under DropConnect
  int64_t count;               // groups * partials
  size_t scratch;              // bytes that a thread needs
  int64_t partials;            // chunks * batches, or pieces: LightConv's backward has as many sums (H, K) of type A
};

struct Gradients {
  const void* out;       // the gradient that comes in, (T, B, C)
  void* x;               // null: not wanted
  void* state;           // null: not wanted
  void* weight;          // DynamicConv: (T, B, H, K); null: not wanted
  void* light_partials;  // LightConv: zeros (Units::partials, H, K) of type A; null: not wanted
};

// One position of a causal convolution for N hypotheses, whose past lies in a ring.
struct Step {
  int64_t N, M, C, H, K;  // rows in use, rows of the ring, channels, heads, width
  int64_t slot, inputs;   // where the newest input goes; how many there are, itself included, at most K
  bool dynamic, softmax;
  Scalar type;
  const void* x;       // (N, C)
  const void* weight;  // (H, K), or (N, H, K) where dynamic
  void* ring;          // (K, M, C)
  int32_t* ancestors;  // (K, N): the ring's row that holds a hypothesis's input, by slot
  void* out;           // (N, C)
};

// x to y, numbers in groups of 64, see fused/train.inl.
struct Dropout {
  Scalar type;
  const void* x;
  void* y;
  int64_t count;
  float probability;
  uint64_t seed;
};

// Rows of logits (N, V), and the type that each row should give; negative: the row does not count.
struct LossTask {
  int64_t V;
  Scalar type;
  const void* logits;
  const int64_t* target;
};

// gradient = scale * exp(logit - log_sum) - share - (at the target: extra); rows whose target is negative get 0.
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
  const bool* padding;      // (sentences, S), or null: none
  const int64_t* sentence;  // (N), each row's
  void* out;                // (N, C)
};

// The best continuations of each of N hypotheses, by log-probability plus the score so far.
struct Search {
  int64_t N, V, count;
  const float* logits;  // (N, V)
  const float* scores;  // (N)
  float temperature, unk_penalty;
  int64_t pad, unk, banned, only;  // pad and banned are never taken; only, unless -1, is all that may be
  float* values;                   // (N, count), the largest first, -inf where there is none
  int32_t* tokens;                 // (N, count)
};

// A weight (out, in) in the order in which products of one type read it.
struct PackedWeight {
  enum class Type { none, f32, bf16, int8 } type;
  const void* data;  // f32: (ceil(out / 16), in, 16), zero where the weight has nothing; bf16.h and int8.h have the others
};

// y = x weight^T + bias, and 0 for what is negative where relu is true.
struct Linear {
  int64_t rows, in, out;
  const float *x, *weight, *bias;  // (rows, in), (out, in), (out) or null
  PackedWeight packed;             // read in place of weight where there is one
  bool relu;
  float* y;  // (rows, out)
};

// Of C channels: (C), (C)
struct LayerNorm {
  const float *scale, *shift;
  float eps;
};

// The paper's operators, and from `dropout` on the fused ones (fused/).
struct Kernels {
  int vector_bits;
  Units (*units)(const Conv&, bool backward);
  void (*forward)(const Conv&, const Units&, void* out, void* scratch, int64_t begin, int64_t end);
  void (*backward)(const Conv&, const Units&, const Gradients&, void* scratch, int64_t begin, int64_t end);
  void (*step)(const Step&, void* scratch, int64_t begin, int64_t end);
  void (*dropout)(const Dropout&, int64_t begin, int64_t end);  // groups
  void (*loss_rows)(const LossTask&, double* rows, int64_t begin, int64_t end);  // four numbers a row
  void (*loss_gradient)(const LossTask&, const LossGradient&, int64_t begin, int64_t end);
  void (*attend)(const Attention&, void* scratch, int64_t begin, int64_t end);
  void (*best)(const Search&, void* scratch, int64_t begin, int64_t end);
  void (*linear)(const Linear&, int64_t begin, int64_t end);         // columns of y
  void (*linear_packed)(const Linear&, int64_t begin, int64_t end);  // pairs of blocks of 16 columns of y
  // of few rows, between the products of a block
  void (*gate)(const float* x, int64_t rows, int64_t C, float* y);  // (rows, 2C) to (rows, C)
  void (*normalize)(const LayerNorm&, const float* x, int64_t rows, int64_t C, float* y);
};

extern const Kernels baseline_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// Whether a head's channels fill a vector; else weights are laid out for each channel.
static inline bool by_head(const Step& step) { return step.C / step.H >= 16; }

// Rows that `step` works on at once: their sums fill half of the first cache. One where each lays out its weights.
static inline int64_t block_rows(const Step& step) {
  const int64_t rows = step.C == 0 ? 1 : 4096 / step.C;
  return rows < 1 || (step.dynamic && !by_head(step)) ? 1 : rows;
}

// Numbers of 8 bytes that `step` needs for itself: kernels and sums of a block, and weights by channel.
static inline int64_t step_scratch(const Step& step) {
  return block_rows(step) * (step.H * step.K + step.C) + (by_head(step) ? 0 : step.K * step.C);
}

// Numbers of 8 bytes that `attend` needs for itself: queries, sums and weights of rows that it does together, and the
// positions that are seen.
static inline int64_t attend_scratch(const Attention& a) { return 5 * (2 * a.C + a.H * a.S) + a.S; }

// And for `best`: the largest logit of each chunk.
constexpr int64_t kSearchChunk = 256;
static inline int64_t best_scratch(const Search& search) { return search.V / kSearchChunk + 1; }

const Kernels& kernels();  // the table in use: of the widest vectors that the machine has, unless a test asked for less

}  // namespace lightconv
