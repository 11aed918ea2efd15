// Matrix products of 8-bit integers with sums of 32 bits.
#pragma once

#include <cstdint>

namespace lightconv {

// A weight (N, K) is packed in blocks of 16 columns (rows of the weight, which become columns of the product). A block is
//   tiles  (ceil(K / 64), 16, 16, 4) int8: 16 groups of 4 neighbours of the depth, of each of 16 columns; AMX's order
//   scale  (16) float32: of each column, the weight of the integer 1
//   total  (16) int32: the sum of each column's integers
// and zero where the weight has nothing.
static inline int64_t int8_depth(int64_t K) { return (K + 63) / 64 * 64; }
static inline int64_t int8_block(int64_t K) { return 16 * (int8_depth(K) + 8); }  // bytes

// The largest K: a sum of K products of 255 and 127 fits into 32 bits.
constexpr int64_t kInt8Depth = 65536;

// Rows of activations, each rounded with a scale and a zero point of its own: x is about scale * (integer - zero).
struct RoundedRows {
  uint8_t* integers;  // (M rounded up to 32, int8_depth(K)), beginning at a multiple of 64 bytes
  float* scale;       // (M)
  int32_t* zero;      // (M)
};

// C (M, N) = A (M, K) B (K, N) + bias, and 0 for what is negative where relu is true.
struct Int8Product {
  int64_t M, N, K;
  RoundedRows a;
  const int8_t* b;    // packed blocks
  const float* bias;  // (N), or null
  bool relu;
  float* c;
};

// Better ones have larger numbers.
enum class Int8Units { none, avx2, avx512, avx_vnni, avx512_vnni, amx };

// One set of instructions (int8.cpp is compiled for each).
struct Int8Kernels {
  // Rows [begin, end) of x (M, K).
  void (*round)(const float* x, int64_t K, const RoundedRows& to, int64_t begin, int64_t end);
  // Pairs of blocks of columns [begin, end).
  void (*multiply)(const Int8Product&, int64_t begin, int64_t end);
};

#if defined(__x86_64__)
// Without VNNI the activations have 7 bits: two products of 8 bits would not fit into the 16 bits that they are summed in.
extern const Int8Kernels avx2_int8, avx512_int8, avx_vnni_int8, avx512_vnni_int8, amx_int8;
#endif

}  // namespace lightconv
