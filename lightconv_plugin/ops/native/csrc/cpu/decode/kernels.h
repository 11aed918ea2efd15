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

struct DecodeKernels {
  void (*step)(const Step&, void* scratch, int64_t begin, int64_t end);
};

// Whether a head's channels fill a vector; else weights are laid out for each channel.
inline bool by_head(const Step& step) { return step.C / step.H >= 16; }

// Rows that `step` works on at once: their sums fill a part of the second cache. One where each lays out its weights.
inline int64_t block_rows(const Step& step) {
  const int64_t rows = 16384 / step.C;
  return rows < 1 || (step.dynamic && !by_head(step)) ? 1 : rows;
}

// Numbers of 8 bytes that `step` needs for itself: kernels and sums of a block, and weights by channel.
inline int64_t step_scratch(const Step& step) {
  return block_rows(step) * (step.H * step.K + step.C) + (by_head(step) ? 0 : step.K * step.C);
}

extern const DecodeKernels baseline_decode;
#if defined(__x86_64__)
extern const DecodeKernels avx2_decode;
extern const DecodeKernels avx512_decode;
#endif

}  // namespace lightconv
