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

// C (M, N) = A (M, K) B (K, N) + bias, and 0 for what is negative where relu is true.
// B is packed in blocks of 16 columns, each of tiles of 32 rows: 16 pairs of rows, of which each column's lie together.
// A may be packed in blocks of 32 rows, each of pairs of tiles of 16 rows and 32 columns.
struct Product {
  int64_t M, N, K;
  Matrix a;                  // whose rows lie together, or none:
  const uint16_t* a_packed;  // (M / 32, K / 32, 2, 16, 32), rounded up, zero where A has nothing
  const uint16_t* b_packed;  // (N / 16, K / 32, 16, 16, 2), rounded up, zero where B has nothing
  const float* bias;         // (N), or null
  bool relu;
  float* c;                  // (M, N)
};

inline int64_t tiles(int64_t depth) { return (depth + 31) / 32; }
inline int64_t row_blocks(int64_t M) { return (M + 31) / 32; }
inline int64_t column_blocks(int64_t N) { return (N + 15) / 16; }
inline int64_t packed_size(int64_t N, int64_t K) { return column_blocks(N) * tiles(K) * 512; }  // of B

// Numbers of 2 bytes that a thread needs for `product`, beginning at a multiple of 64 bytes.
inline constexpr int64_t kDepth = 1024;  // of a pass: rows of B that stay in a core's cache while A goes by
inline constexpr int64_t kProductScratch = 32 * kDepth;

#if defined(__x86_64__)
// Packs B whose columns lie together, as a weight's transpose: blocks [begin, end) of them.
void bf16_pack_columns(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end);
// Packs B whose rows lie together: tiles [begin, end) of each block, since memory is read fast in its own order alone.
void bf16_pack_rows(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end);
// Packs A whose columns lie together: pairs of tiles [begin, end) of each block. Sums each tile's rows: (K / 32, M).
void bf16_pack_left(const Matrix& a, int64_t M, int64_t K, uint16_t* packed, float* sums, int64_t begin, int64_t end);
// Rows [first, last) of C, `first` a multiple of 32, in the columns of blocks [begin, end).
void bf16_product(const Product&, Bf16Units, uint16_t* scratch, int64_t first, int64_t last, int64_t begin,
                  int64_t end);
#endif

}  // namespace lightconv
