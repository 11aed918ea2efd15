// Matrix products of operands rounded to bfloat16, accumulated in float32, on processors with units for that.
#pragma once

#include <cstdint>

namespace lightconv {

enum class Bf16Units { none, avx512, amx };

// A matrix of float32 in which one of the strides is 1.
struct Matrix {
  const float* data;
  int64_t row, column;  // strides
};

// C (M, N) = A (M, K) B (K, N) + bias. If relu is true, negative results become 0.
// B is packed in blocks of 16 columns. These have tiles of 32 rows, stored as 16 pairs of rows: the two numbers of a
// pair in one column are neighbours. A may be packed in blocks of 32 rows. These have pairs of tiles of 16 rows and 32
// columns.
struct Product {
  int64_t M, N, K;
  Matrix a;                  // with contiguous rows; not used if there is a_packed
  const uint16_t* a_packed;  // (M / 32, K / 32, 2, 16, 32), rounded up and padded with zeros; or null
  const uint16_t* b_packed;  // (N / 16, K / 32, 16, 16, 2), rounded up and padded with zeros
  const float* bias;         // (N), or null
  bool relu;
  float* c;                  // (M, N)
};

inline int64_t tiles(int64_t depth) { return (depth + 31) / 32; }
inline int64_t row_blocks(int64_t M) { return (M + 31) / 32; }
inline int64_t column_blocks(int64_t N) { return (N + 15) / 16; }
inline int64_t packed_size(int64_t N, int64_t K) { return column_blocks(N) * tiles(K) * 512; }  // of B

// Scratch memory of a thread in bf16_product, in numbers of 2 bytes. It must start at a multiple of 64 bytes.
inline constexpr int64_t kDepth = 1024;  // depth of a pass: these rows of B stay in a core's cache while A is read
inline constexpr int64_t kProductScratch = 32 * kDepth;

#if defined(__x86_64__)
// Packs a B with contiguous columns, such as the transpose of a weight: its blocks [begin, end).
void bf16_pack_columns(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end);
// Packs a B with contiguous rows: tiles [begin, end) of each block, since memory is only read fast in its own order.
void bf16_pack_rows(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end);
// Packs an A with contiguous columns: pairs of tiles [begin, end) of each block. sums (K / 32, M): the sum of each row
// of the tiles, before rounding.
void bf16_pack_left(const Matrix& a, int64_t M, int64_t K, uint16_t* packed, float* sums, int64_t begin, int64_t end);
// Computes rows [first, last) of C, `first` a multiple of 32, in the columns of blocks [begin, end).
void bf16_product(const Product&, Bf16Units, uint16_t* scratch, int64_t first, int64_t last, int64_t begin,
                  int64_t end);
#endif

}  // namespace lightconv
