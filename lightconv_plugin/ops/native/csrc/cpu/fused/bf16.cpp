// Products of bfloat16 with AMX's tiles, or with AVX512-BF16's dot products. Both flush denormal numbers to zero.
#include "cpu/fused/bf16.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace lightconv {
namespace {

constexpr int64_t kTile = 512;              // numbers of a tile: 16 rows of 32 (A), or 16 pairs of rows of 16 (B)
constexpr int64_t kPanel = (1 << 20) / 2;  // numbers of B that stay in a core's cache

__m512i rounded(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

__mmask16 mask_of(int64_t count) {
  return count >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << std::max<int64_t>(count, 0)) - 1);
}

// Transposes 16 x 16 numbers of 4 bytes, here pairs of bfloat16: from the rows of a tile to its pairs of rows, and
// back.
void transpose(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// Loads 16 lines of 32 contiguous numbers. Only `lines` lines and `depth` numbers of each exist; the others become 0.
void load_lines(const float* from, int64_t stride, int64_t lines, int64_t depth, __m512i r[16]) {
  const __mmask16 low = mask_of(depth), high = mask_of(depth - 16);
  for (int64_t i = 0; i < 16; ++i, from += stride)
    r[i] = i < lines ? rounded(_mm512_maskz_loadu_ps(low, from), _mm512_maskz_loadu_ps(high, from + 16))
                     : _mm512_setzero_si512();
}

// Loads the same lines, if they are the contiguous dimension: r[i] has the numbers 2 * i and 2 * i + 1 of all 16 lines.
// Returns the sum of each line.
__m512 load_pairs(const float* from, int64_t stride, int64_t lines, int64_t depth, __m512i r[16]) {
  const __mmask16 mask = mask_of(lines);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < 16; ++i, from += 2 * stride) {
    const __m512 even = 2 * i < depth ? _mm512_maskz_loadu_ps(mask, from) : _mm512_setzero_ps();
    const __m512 odd = 2 * i + 1 < depth ? _mm512_maskz_loadu_ps(mask, from + stride) : _mm512_setzero_ps();
    sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
    r[i] = _mm512_permutexvar_epi16(order, rounded(even, odd));
  }
  return sum;
}

void store(const __m512i r[16], uint16_t* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 32 * i, r[i]);
}

// Packs rows [row, row + rows) of A, at most 32, at depths [depth, depth + K), to tiles (K / 32, 2, 16, 32).
void pack_block(const Matrix& a, int64_t row, int64_t rows, int64_t depth, int64_t K, uint16_t* to) {
  for (int64_t part = 0; part < (rows + 15) / 16; ++part)
    for (int64_t k = 0; k < K; k += 32) {
      __m512i r[16];
      load_lines(a.data + (row + 16 * part) * a.row + depth + k, a.row, rows - 16 * part, K - k, r);
      store(r, to + (k / 32 * 2 + part) * kTile);
    }
}

// One block of C: up to 32 rows, up to two blocks of columns. The product is added to C if `add` is true; otherwise it
// overwrites C.
struct Block {
  const uint16_t *a, *b;  // tiles of A; tiles of B's first block of columns
  int64_t tiles, b_stride;  // tiles along the depth; stride of B from one block of columns to the next
  bool two_rows, two_columns, add;
  float* c;
  int64_t stride;  // of C
};

void dot_block(const Block& block) {
  const int columns = block.two_columns ? 2 : 1;
  for (int row = 0; row < (block.two_rows ? 32 : 16); row += 8) {
    float* c = block.c + row * block.stride;
    __m512 sum[8][2];
    for (int i = 0; i < 8; ++i)
      for (int j = 0; j < 2; ++j)
        sum[i][j] = block.add && j < columns ? _mm512_loadu_ps(c + i * block.stride + 16 * j) : _mm512_setzero_ps();
    const uint16_t* b1 = block.b + (columns - 1) * block.b_stride;  // the first again if there is only one
    for (int64_t k = 0; k < block.tiles; ++k) {
      const uint16_t* a = block.a + (2 * k + row / 16) * kTile + row % 16 * 32;
      for (int pair = 0; pair < 16; ++pair) {
        const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(block.b + k * kTile + 32 * pair));
        const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b1 + k * kTile + 32 * pair));
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          int32_t both;
          std::memcpy(&both, a + 32 * i + 2 * pair, sizeof both);
          const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
          sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, left);
          sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, right);
        }
      }
    }
    for (int i = 0; i < 8; ++i)
      for (int j = 0; j < columns; ++j) _mm512_storeu_ps(c + i * block.stride + 16 * j, sum[i][j]);
  }
}

#define LIGHTCONV_AMX __attribute__((target("amx-tile,amx-bf16")))

// Prefetch distance in tiles, 4 KiB. For few rows, reading B dominates the time, and hardware prefetches it too late.
constexpr int64_t kAhead = 4;

inline void ask_for_tile(const uint16_t* tile) {
#pragma GCC unroll 16
  for (int line = 0; line < 16; ++line) __builtin_prefetch(tile + 32 * line);
}

struct TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

LIGHTCONV_AMX void begin_tiles() {
  static const TileShapes shapes;  // not on the stack: GCC only knows that 8 of the bytes are read
  _tile_loadconfig(&shapes);
}

LIGHTCONV_AMX void end_tiles() { _tile_release(); }

template <bool TwoRows, bool TwoColumns>
LIGHTCONV_AMX void tile_block(const Block& block) {
  float *c = block.c, *below = c + 16 * block.stride;
  const int64_t bytes = 4 * block.stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (block.add) {
    _tile_loadd(0, c, bytes);
    if (TwoColumns) { _tile_loadd(1, c + 16, bytes); }
    if (TwoRows) { _tile_loadd(2, below, bytes); }
    if (TwoRows && TwoColumns) { _tile_loadd(3, below + 16, bytes); }
  }
  const uint16_t *a = block.a, *left = block.b, *right = left + block.b_stride;
  for (int64_t k = 0; k < block.tiles; ++k, a += 2 * kTile, left += kTile, right += kTile) {
    if (!TwoRows) {
      ask_for_tile(left + kAhead * kTile);
      if (TwoColumns) ask_for_tile(right + kAhead * kTile);
    }
    _tile_loadd(4, a, 64);
    _tile_loadd(6, left, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (TwoColumns) {
      _tile_loadd(7, right, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TwoRows) {
      _tile_loadd(5, a + kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      if (TwoColumns) { _tile_dpbf16ps(3, 5, 7); }
    }
  }
  _tile_stored(0, c, bytes);
  if (TwoColumns) { _tile_stored(1, c + 16, bytes); }
  if (TwoRows) { _tile_stored(2, below, bytes); }
  if (TwoRows && TwoColumns) { _tile_stored(3, below + 16, bytes); }
}

void amx_block(const Block& block) {
  if (block.two_rows)
    block.two_columns ? tile_block<true, true>(block) : tile_block<true, false>(block);
  else
    block.two_columns ? tile_block<false, true>(block) : tile_block<false, false>(block);
}

// Multiplies a block that may lie at the edge of C: if it is not of whole tiles, the result goes to a buffer of 32 x 32
// first.
void with_edges(const Block& whole, int64_t rows, int64_t columns, void (*multiply)(const Block&)) {
  if (rows % 16 == 0 && columns % 16 == 0) return multiply(whole);
  alignas(64) float beside[32 * 32];
  Block block = whole;
  block.c = beside, block.stride = 32;
  if (whole.add)
    for (int64_t i = 0; i < rows; ++i) std::memcpy(beside + 32 * i, whole.c + i * whole.stride, 4 * columns);
  multiply(block);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(whole.c + i * whole.stride, beside + 32 * i, 4 * columns);
}

// Adds the bias, unless null, to a part of C. With relu, negative numbers become 0.
void finish(const float* bias, bool relu, int64_t rows, int64_t columns, float* c, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i, c += stride) {
    if (bias != nullptr)
      for (int64_t j = 0; j < columns; ++j) c[j] += bias[j];
    if (relu)
      for (int64_t j = 0; j < columns; ++j) c[j] = c[j] < 0 ? 0 : c[j];  // NaN stays
  }
}

}  // namespace

void bf16_pack_columns(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n)
    for (int64_t k = 0; k < tiles(K); ++k) {
      __m512i r[16];
      load_lines(b.data + 16 * n * b.column + 32 * k, b.column, N - 16 * n, K - 32 * k, r);
      transpose(r);
      store(r, packed + (n * tiles(K) + k) * kTile);
    }
}

void bf16_pack_rows(const Matrix& b, int64_t N, int64_t K, uint16_t* packed, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k)
    for (int64_t n = 0; n < column_blocks(N); ++n) {
      __m512i r[16];
      load_pairs(b.data + 32 * k * b.row + 16 * n, b.row, N - 16 * n, K - 32 * k, r);
      store(r, packed + (n * tiles(K) + k) * kTile);
    }
}

void bf16_pack_left(const Matrix& a, int64_t M, int64_t K, uint16_t* packed, float* sums, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k)
    for (int64_t part = 0; part < 2 * row_blocks(M); ++part) {
      __m512i r[16];
      const int64_t row = 16 * part;
      const __m512 sum = load_pairs(a.data + 32 * k * a.column + row, a.column, M - row, K - 32 * k, r);
      _mm512_mask_storeu_ps(sums + k * M + row, mask_of(M - row), sum);
      transpose(r);
      store(r, packed + ((part / 2 * tiles(K) + k) * 2 + part % 2) * kTile);
    }
}

void bf16_product(const Product& p, Bf16Units units, uint16_t* scratch, int64_t first, int64_t last, int64_t begin,
                  int64_t end) {
  const int64_t depth = std::clamp<int64_t>(32 * tiles(p.K), 32, kDepth), stride = tiles(p.K) * kTile;
  const int64_t panel = std::max<int64_t>(2, kPanel / (depth * 16 + 1) / 2 * 2);
  const auto multiply = units == Bf16Units::amx ? &amx_block : &dot_block;
  if (units == Bf16Units::amx) begin_tiles();
  for (int64_t left = begin; left < end; left += panel) {
    const int64_t right = std::min(left + panel, end);
    for (int64_t k = 0; k < p.K || k == 0; k += depth) {
      const int64_t deep = std::min(depth, p.K - k);
      for (int64_t row = first; row < last; row += 32) {
        const int64_t rows = std::min<int64_t>(32, last - row);
        const uint16_t* a = scratch;
        if (p.a_packed != nullptr)
          a = p.a_packed + 2 * (row / 32 * stride + k / 32 * kTile);
        else
          pack_block(p.a, row, rows, k, deep, scratch);
        for (int64_t n = left; n < right; n += 2) {
          const int64_t columns = std::min<int64_t>(n + 1 < right ? 32 : 16, p.N - 16 * n);
          const Block block{a,         p.b_packed + n * stride + k / 32 * kTile, tiles(deep), stride,
                            rows > 16, columns > 16,                             k > 0,       p.c + row * p.N + 16 * n,
                            p.N};
          with_edges(block, rows, columns, multiply);
        }
        if ((p.bias != nullptr || p.relu) && k + depth >= p.K) {
          const int64_t columns = std::min(16 * right, p.N) - 16 * left;
          const float* bias = p.bias == nullptr ? nullptr : p.bias + 16 * left;
          finish(bias, p.relu, rows, columns, p.c + row * p.N + 16 * left, p.N);
        }
      }
    }
  }
  if (units == Bf16Units::amx) end_tiles();
}

}  // namespace lightconv
