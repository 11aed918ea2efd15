// What the operators beside the paper's need of the CPU, once for each vector width, as cpu/kernels.h has it.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace lightconv {

// Rows of logits (N, V), and the type that each row should give; negative: the row does not count.
struct LossTask {
  int64_t V;
  Scalar type;
  const void* logits;
  const int64_t* target;
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
  const uint16_t* packed;          // the weight for products in bfloat16 (bf16.h), or null: in float32
  float* y;                        // (rows, out)
};

// Of C channels: (C), (C)
struct LayerNorm {
  const float *scale, *shift;
  float eps;
};

struct AuxiliaryKernels {
  // numbers 64 * begin .. 64 * end of `count`, see dropout.inl
  void (*dropout)(Scalar, const void* x, void* y, int64_t count, float probability, uint64_t seed, int64_t begin,
                  int64_t end);
  // see loss.inl; four numbers a row
  void (*loss_rows)(const LossTask&, double* rows, int64_t begin, int64_t end);
  void (*loss_gradient)(const LossTask&, const double* log_sums, double scale, double share, double extra,
                        void* gradient, int64_t begin, int64_t end);
  void (*attend)(const Attention&, void* scratch, int64_t begin, int64_t end);
  void (*best)(const Search&, void* scratch, int64_t begin, int64_t end);
  void (*linear)(const Linear&, int64_t begin, int64_t end);  // columns of y
  // of few rows, between the products of a block
  void (*gate)(const float* x, int64_t rows, int64_t C, float* y);  // (rows, 2C) to (rows, C)
  void (*relu)(float* x, int64_t count);
  void (*add)(const float* x, int64_t count, float* sum);
  void (*normalize)(const LayerNorm&, const float* x, int64_t rows, int64_t C, float* y);
  double (*fma)(int64_t iterations, float* sink);
};

// Numbers of 8 bytes that `attend` needs for itself: a query, a sum and the weights of a head, the first of which is read
// whatever S is.
inline int64_t attend_scratch(const Attention& a) { return 2 * (a.C / a.H) + a.S + 1; }

// And for `best`: the largest logit of each chunk.
constexpr int64_t kSearchChunk = 256;
inline int64_t best_scratch(const Search& search) { return search.V / kSearchChunk + 1; }

extern const AuxiliaryKernels baseline_auxiliary;
#if defined(__x86_64__)
extern const AuxiliaryKernels avx2_auxiliary;
extern const AuxiliaryKernels avx512_auxiliary;
#endif

const AuxiliaryKernels& auxiliary_kernels();  // of the vectors that `kernels()` uses

}  // namespace lightconv
