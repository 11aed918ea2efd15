// What the CPU kernels offer, once for each vector width; conv.cpp checks the arguments, shares out the work, picks one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lightconv {

enum class Scalar { f32, f64, bf16 };

// One convolution: x (T, B, C), contiguous; logits (H, K) or, dynamic, (T, B, H, K), contiguous.
// Sums are in float64 for f64, else in float32: the type A of the kernels.
struct Conv {
  int64_t T, B, C, H, K, padding_l;
  bool dynamic, softmax;
  float dropconnect;  // probability of dropping; 0: none
  uint64_t seed;
  Scalar type;
  const void* x;
  const void* weight;
  const void* light;  // LightConv: the kernels as they are used, (H, K), of type A

  bool per_position() const { return dynamic || dropconnect > 0; }  // is there a kernel for each position?
};

// The work of one pass is cut into units: some heads, some sentences, a chunk of time. How it is cut does not depend on
// the number of threads, so neither does the order in which anything is summed.
struct Units {
  int64_t chunks, rows;        // of time; rows of a chunk, the last may have fewer
  int64_t batches, sentences;  // of sentences, where they are short; sentences of a batch, the last may have fewer
  int64_t groups, heads;       // of heads; heads of a group, the last may have fewer
  bool wide;                   // LightConv whose heads are narrower than a vector: lanes run over several heads
  int64_t count;               // groups * chunks * batches
  size_t scratch;              // bytes that a thread needs
  int64_t partials;            // LightConv's backward: rows of partial sums, (partials, H, K) of type A
};

struct Gradients {
  const void* out;       // the gradient that comes in, (T, B, C)
  void* x;               // null: not wanted
  void* weight;          // DynamicConv: (T, B, H, K); null: not wanted
  void* light_partials;  // LightConv: zeros (Units::partials, H, K) of type A; null: not wanted
};

// Rows of logits (N, V), and the type that each row should give; negative: the row does not count.
struct LossTask {
  int64_t V;
  Scalar type;
  const void* logits;
  const int64_t* target;
};

struct Kernels {
  int vector_bits;
  Units (*units)(const Conv&, bool backward);
  void (*forward)(const Conv&, const Units&, void* out, void* scratch, int64_t begin, int64_t end);
  void (*backward)(const Conv&, const Units&, const Gradients&, void* scratch, int64_t begin, int64_t end);
  // numbers 64 * begin .. 64 * end of `count`, see mask.h
  void (*dropout)(Scalar, const void* x, void* y, int64_t count, float probability, uint64_t seed, int64_t begin,
                  int64_t end);
  // see loss.h; four numbers a row
  void (*loss_rows)(const LossTask&, double* rows, int64_t begin, int64_t end);
  void (*loss_gradient)(const LossTask&, const double* log_sums, double scale, double share, double extra,
                        void* gradient, int64_t begin, int64_t end);
  double (*fma)(int64_t iterations, float* sink);
};

extern const Kernels baseline_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

const Kernels& kernels();  // the table in use: of the widest vectors that the machine has, unless a test asked for less

}  // namespace lightconv
