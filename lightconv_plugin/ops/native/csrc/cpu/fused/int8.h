// Matrix products of 8-bit integers, accumulated in 32 bits.
#pragma once

#include <cstdint>

namespace lightconv {

// A weight (N, K) is packed in blocks of 16 of its rows, which become columns of the product. A block is
//   tiles  (ceil(K / 64), 16, 16, 4) int8: 16 groups of 4 neighbours along K, each for 16 columns, in the order of AMX
//   scale  (16) float32: for each column, the weight that the integer 1 stands for
//   total  (16) int32: the sum of each column's integers
// and is padded with zeros.
static inline int64_t int8_depth(int64_t K) { return (K + 63) / 64 * 64; }
static inline int64_t int8_block(int64_t K) { return 16 * (int8_depth(K) + 8); }  // bytes

// The largest K: a sum of K products of 255 and 127 fits into 32 bits.
constexpr int64_t kInt8Depth = 65536;

// Rows of activations, each rounded with a scale and a zero point of its own: x is about scale * (integer - zero).
struct RoundedRows {
  uint8_t* integers;  // (M rounded up to 32, int8_depth(K)), starting at a multiple of 64 bytes
  float* scale;       // (M)
  int32_t* zero;      // (M)
};

// C (M, N) = A (M, K) B (K, N) + bias. If relu is true, negative results become 0.
struct Int8Product {
  int64_t M, N, K;
  RoundedRows a;
  const int8_t* b;    // packed blocks
  const float* bias;  // (N), or null
  bool relu;
  float* c;
};

// Sets of instructions for these products; a better one has a larger number.
enum class Int8Units { none, avx2, avx512, avx_vnni, avx512_vnni, amx };

// The kernels for one set of instructions, see int8.cpp.
struct Int8Kernels {
  // Rounds rows [begin, end) of x (M, K).
  void (*round)(const float* x, int64_t K, const RoundedRows& to, int64_t begin, int64_t end);
  // Computes the pairs [begin, end) of blocks of columns.
  void (*multiply)(const Int8Product&, int64_t begin, int64_t end);
};

#if defined(__x86_64__)
// Without VNNI the activations have 7 bits: of 8 bits, the sum of two products would not fit into 16 bits.
extern const Int8Kernels avx2_int8, avx512_int8, avx_vnni_int8, avx512_vnni_int8, amx_int8;
#endif

}  // namespace lightconv
