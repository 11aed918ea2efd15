// What decoding needs of the CPU, once for each vector width. Kernels work on rows [begin, end) with scratch of their
// caller's, so that nothing of torch or the standard library is compiled for a width that the machine may not have.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace lightconv {

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
  const float* scores;  // (N), or null: 0
  float temperature, unk_penalty;
  int64_t pad, unk, banned, only;  // pad and banned are never taken; only, unless -1, is all that may be
  float* values;                   // (N, count), the largest first, -inf where there is none
  int32_t* tokens;                 // (N, count)
};

// y = x weight^T + bias
struct Linear {
  int64_t rows, in, out;
  const float *x, *weight, *bias;  // (rows, in), (out, in), (out) or null
  float* y;                        // (rows, out)
};

// Of C channels: (C), (C)
struct LayerNorm {
  const float *scale, *shift;
  float eps;
};

struct DecodeKernels {
  void (*step)(const Step&, void* scratch, int64_t begin, int64_t end);
  void (*attend)(const Attention&, void* scratch, int64_t begin, int64_t end);
  void (*best)(const Search&, void* scratch, int64_t begin, int64_t end);
  void (*linear)(const Linear&, int64_t begin, int64_t end);  // columns of y
  // of few rows, between the products of a block
  void (*gate)(const float* x, int64_t rows, int64_t C, float* y);  // (rows, 2C) to (rows, C)
  void (*relu)(float* x, int64_t count);
  void (*add)(const float* x, int64_t count, float* sum);
  void (*normalize)(const LayerNorm&, const float* x, int64_t rows, int64_t C, float* y);
};

// Whether a head's channels fill a vector; else weights are laid out for each channel.
inline bool by_head(const Step& step) { return step.C / step.H >= 16; }

// Rows that `step` works on at once: their sums fill half of the first cache. One where each lays out its weights.
inline int64_t block_rows(const Step& step) {
  const int64_t rows = 4096 / step.C;
  return rows < 1 || (step.dynamic && !by_head(step)) ? 1 : rows;
}

// Numbers of 8 bytes that `step` needs for itself: kernels and sums of a block, and weights by channel.
inline int64_t step_scratch(const Step& step) {
  return block_rows(step) * (step.H * step.K + step.C) + (by_head(step) ? 0 : step.K * step.C);
}

// The same for `attend`: a query, a sum and the weights of a head, the first of which is read whatever S is.
inline int64_t attend_scratch(const Attention& a) { return 2 * (a.C / a.H) + a.S + 1; }

// And for `best`: the largest logit of each chunk.
inline int64_t best_scratch(const Search& search) { return search.V / 256 + 1; }

const DecodeKernels& decode_kernels();  // the table in use

extern const DecodeKernels baseline_decode;
#if defined(__x86_64__)
extern const DecodeKernels avx2_decode;
extern const DecodeKernels avx512_decode;
#endif

}  // namespace lightconv
