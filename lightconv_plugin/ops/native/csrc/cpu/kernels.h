// What the CPU kernels offer, once for each vector width; library.cpp checks the arguments and picks one.
#pragma once

#include <cstdint>

namespace lightconv {

enum class Scalar { f32, f64, bf16 };

// One convolution: x (T, B, C), contiguous; logits (H, K) or, dynamic, (T, B, H, K), contiguous.
struct Conv {
  int64_t T, B, C, H, K, padding_l;
  bool dynamic, softmax;
  float dropconnect;  // probability of dropping; 0: none
  uint64_t seed;
  Scalar type;
  const void* x;
  const void* weight;
};

struct Kernels {
  int vector_bits;
  void (*forward)(const Conv&, void* out);
  // grad_x or grad_weight may be null: not wanted
  void (*backward)(const Conv&, const void* grad, void* grad_x, void* grad_weight);
};

extern const Kernels baseline_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

const Kernels& kernels();  // the table in use: of the widest vectors that the machine has, unless a test asked for less

}  // namespace lightconv
