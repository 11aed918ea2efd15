// Matrix products whose operands are rounded to bfloat16 and whose sums are float32, on processors with units for that.
#pragma once

#include <cstdint>

namespace lightconv {

enum class Bf16Units { none, avx512, amx };

// A matrix of float32 in which one of the strides is 1.
struct Matrix {
  const float* data;
  int64_t row, column;  // strides
};

// C (M, N) = A (M, K) B (K, N) + bias.
// B is packed in blocks of 16 columns, each of tiles of 32 rows: 16 pairs of rows, of which each column's lie together.
struct Product {
  int64_t M, N, K;
  Matrix a;
  const uint16_t* b;  // (N / 16, K / 32, 16, 16, 2), rounded up, zero where B has nothing
  const float* bias;  // (N), or null
  float* c;           // (M, N)
  float* a_sums;      // (M), each row of A summed, for columns that lie together; or null
};

inline int64_t column_blocks(int64_t N) { return (N + 15) / 16; }
inline int64_t packed_size(int64_t N, int64_t K) { return column_blocks(N) * ((K + 31) / 32) * 512; }

// Numbers of 2 bytes that a thread needs for `product`, beginning at a multiple of 64 bytes.
inline constexpr int64_t kDepth = 1024;  // of a pass: rows of B that stay in a core's cache while A goes by
inline constexpr int64_t kProductScratch = 32 * kDepth;

#if defined(__x86_64__)
// Packs blocks [begin, end) of B's columns.
void bf16_pack(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end);
// Rows [first, last) of C, `first` a multiple of 32, in the columns of blocks [begin, end).
void bf16_product(const Product&, Bf16Units, uint16_t* scratch, int64_t first, int64_t last, int64_t begin,
                  int64_t end);
#endif

}  // namespace lightconv
