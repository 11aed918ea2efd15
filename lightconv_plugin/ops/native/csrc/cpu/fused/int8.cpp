// Products of 8-bit integers, compiled once for each set of instructions: LIGHTCONV_INT8 names the table of kernels.
// The build for AVX512-VNNI has a second table, for AMX. Nothing here calls functions of a library, not even std::min:
// code for one set of instructions must never be linked into code for another.
#include "cpu/fused/int8.h"

#include <immintrin.h>

namespace lightconv {
namespace {

#if defined(__AVX512BW__)
constexpr int kLanes = 16, kTileRows = 8, kTileBlocks = 2;  // lanes of 32 bits; rows and blocks of columns of a tile
#else
constexpr int kLanes = 8, kTileRows = 4, kTileBlocks = 1;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int kLevels = 255;  // the largest integer of the activations
#else
constexpr int kLevels = 127;
#endif
// Prefetch distance in bytes, 4 KiB. For few rows, reading B dominates the time, and hardware prefetches it too late.
constexpr int64_t kAhead = 4096;
constexpr int64_t kPanel = 768 * 1024;  // bytes of packed weights that stay in a core's L2 cache

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class V, class T>
V load(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// sums + the products of 4 unsigned bytes with 4 signed ones, lane by lane
Ints dot(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);
  return sums + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
  return sums + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// Converts integers to bytes, clamped to 0..255.
Bytes narrowed(Ints x) {
#if defined(__AVX512BW__)
  return (Bytes)_mm512_cvtusepi32_epi8((__m512i)(x < Ints{} ? Ints{} : x));
#else
  const __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
  const __m128i pairs = _mm_packs_epi32(low, high);
  return __builtin_bit_cast(Bytes, _mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)));
#endif
}

// ---- Rounding of activations ----

void round_row(const float* x, int64_t K, uint8_t* integers, float& scale, int32_t& zero) {
  Floats low{}, high{}, odd{};  // 0 is always in the range
  const auto see = [&](Floats v) {
    low = v < low ? v : low, high = v > high ? v : high;
    odd += v - v;  // NaN where v is not finite
  };
  const int64_t whole = K / kLanes * kLanes;
  float rest[kLanes] = {};
  __builtin_memcpy(rest, x + whole, 4 * (K - whole));
  for (int64_t k = 0; k < whole; k += kLanes) see(load<Floats>(x + k));
  see(load<Floats>(rest));
  float least = 0, most = 0, finite = 0;
  for (int l = 0; l < kLanes; ++l)
    least = low[l] < least ? low[l] : least, most = high[l] > most ? high[l] : most, finite += odd[l];
  scale = (most / kLevels - least / kLevels);
  const bool usable = finite == 0 && scale >= 1e-35f;  // otherwise scale becomes 0, or NaN if a number is not finite
  const float per = usable ? 1 / scale : 0;
  zero = usable ? static_cast<int32_t>(-least * per + 0.5f) : 0;
  scale = finite == 0 ? (usable ? scale : 0) : __builtin_nanf("");
  // adding 1.5 * 2^23 rounds to a whole number, which is then in the low bits
  const Floats shift = Floats{} + (12582912.0f + static_cast<float>(zero));
  const Ints highest = Ints{} + kLevels;
  const auto write = [&](Floats v, int64_t k) {
    const Floats shifted = v * per + shift;
    const Ints rounded = (Ints)shifted - 0x4B400000;
    const Bytes bytes = narrowed(rounded < highest ? rounded : highest);
    __builtin_memcpy(integers + k, &bytes, sizeof bytes);
  };
  for (int64_t k = 0; k < whole; k += kLanes) write(load<Floats>(x + k), k);
  if (whole < int8_depth(K)) write(load<Floats>(rest), whole);
  if (const int64_t written = whole + kLanes; written < int8_depth(K))
    __builtin_memset(integers + written, 0, int8_depth(K) - written);
}

void round_rows(const float* x, int64_t K, const RoundedRows& to, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m)
    round_row(x + m * K, K, to.integers + m * int8_depth(K), to.scale[m], to.zero[m]);
}

// ---- Products ----

// A vector of columns of C from n on, and the constants that turn sums of integers into numbers of C.
struct Columns {
  int64_t first, count;
  Ints total;
  Floats scale, bias, lowest;

  Columns(const Int8Product& p, int64_t n) : first(n), count(smaller(p.N - n, kLanes)) {
    const int8_t* constants = p.b + n / 16 * int8_block(p.K) + 16 * int8_depth(p.K) + 4 * (n % 16);
    scale = load<Floats>(constants), total = load<Ints>(constants + 64);
    float lanes[kLanes] = {};
    if (p.bias != nullptr)
      for (int64_t l = 0; l < count; ++l) lanes[l] = p.bias[n + l];
    bias = load<Floats>(lanes), lowest = Floats{} + (p.relu ? 0 : -__builtin_inff());
  }

  void finish(const Int8Product& p, int64_t m, Ints sums) const {
    const Ints exact = sums - p.a.zero[m] * total;
    Floats value = __builtin_convertvector(exact, Floats) * (scale * p.a.scale[m]) + bias;
    value = value < lowest ? lowest : value;  // NaN stays
    float* c = p.c + m * p.N + first;
    if (count == kLanes) {
      __builtin_memcpy(c, &value, sizeof value);
    } else {
      for (int64_t l = 0; l < count; ++l) c[l] = value[l];
    }
  }
};

template <int Rows, int Blocks>
void multiply_tile(const Int8Product& p, int64_t row, int64_t block) {
  constexpr int kVectors = 16 * Blocks / kLanes;
  const int64_t depth = int8_depth(p.K);
  const uint8_t* a = p.a.integers + row * depth;
  const int8_t* b = p.b + block * int8_block(p.K);
  Ints sums[Rows][kVectors] = {};
  for (int64_t k = 0; k < p.K; k += 4) {
    Ints weights[kVectors];
#pragma GCC unroll 2
    for (int other = 0; other < Blocks; ++other) __builtin_prefetch(b + other * int8_block(p.K) + 16 * k + kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      weights[v] = load<Ints>(b + v * kLanes / 16 * int8_block(p.K) + 16 * k + v * kLanes % 16 * 4);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      int32_t four;
      __builtin_memcpy(&four, a + r * depth + k, sizeof four);
      const Ints row_values = Ints{} + four;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot(sums[r][v], row_values, weights[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (16 * block + v * kLanes >= p.N) return;
    const Columns columns(p, 16 * block + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) columns.finish(p, row + r, sums[r][v]);
  }
}

// Multiplies a tile of at most `Rows` rows, or of as many as are left.
template <int Blocks, int Rows>
void multiply_rows(const Int8Product& p, int64_t row, int64_t block) {
  if constexpr (Rows > 0) {
    if (p.M - row >= Rows) return multiply_tile<Rows, Blocks>(p, row, block);
    multiply_rows<Blocks, Rows - 1>(p, row, block);
  }
}

// Calls tile(row, block), in steps of `rows` and `blocks`, for all rows and for the blocks [begin, end), one panel of
// blocks after the other.
template <class Tile>
void in_panels(const Int8Product& p, int64_t begin, int64_t end, int64_t rows, int64_t blocks, const Tile& tile) {
  const int64_t fitting = kPanel / int8_block(p.K) / 2 * 2, panel = fitting < 2 ? 2 : fitting;
  for (int64_t left = begin; left < end; left += panel)
    for (int64_t row = 0; row < p.M; row += rows)
      for (int64_t block = left; block < smaller(left + panel, end); block += blocks) tile(row, block);
}

void multiply(const Int8Product& p, int64_t begin, int64_t end) {
  const int64_t last = smaller(2 * end, (p.N + 15) / 16);
  in_panels(p, 2 * begin, last, kTileRows, kTileBlocks, [&](int64_t row, int64_t block) {
    if (kTileBlocks == 1 || block + 1 == last)
      multiply_rows<1, kTileRows>(p, row, block);
    else
      multiply_rows<kTileBlocks, kTileRows>(p, row, block);
  });
}

#if defined(__AVX512VNNI__)
#define LIGHTCONV_AMX __attribute__((target("amx-tile,amx-int8")))

struct TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Computes the sums (32, 32) of up to 32 rows and up to two blocks of columns.
template <bool TwoRows, bool TwoColumns>
LIGHTCONV_AMX void multiply_tiles(const Int8Product& p, int64_t row, int64_t block, int32_t* sums) {
  const int64_t depth = int8_depth(p.K);
  const uint8_t *above = p.a.integers + row * depth, *below = above + 16 * depth;
  const int8_t *left = p.b + block * int8_block(p.K), *right = left + int8_block(p.K);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < depth; k += 64) {
    if (!TwoRows) {
#pragma GCC unroll 16
      for (int line = 0; line < 16; ++line) {
        __builtin_prefetch(left + 16 * k + 64 * line + kAhead);
        if (TwoColumns) __builtin_prefetch(right + 16 * k + 64 * line + kAhead);
      }
    }
    _tile_loadd(4, above + k, depth);
    _tile_loadd(6, left + 16 * k, 64);
    _tile_dpbusd(0, 4, 6);
    if (TwoColumns) {
      _tile_loadd(7, right + 16 * k, 64);
      _tile_dpbusd(1, 4, 7);
    }
    if (TwoRows) {
      _tile_loadd(5, below + k, depth);
      _tile_dpbusd(2, 5, 6);
      if (TwoColumns) { _tile_dpbusd(3, 5, 7); }
    }
  }
  _tile_stored(0, sums, 128);
  if (TwoColumns) { _tile_stored(1, sums + 16, 128); }
  if (TwoRows) { _tile_stored(2, sums + 16 * 32, 128); }
  if (TwoRows && TwoColumns) { _tile_stored(3, sums + 16 * 32 + 16, 128); }
}

LIGHTCONV_AMX void multiply_by_tiles(const Int8Product& p, int64_t begin, int64_t end) {
  static const TileShapes shapes;  // not on the stack: GCC only knows that 8 of the bytes are read
  _tile_loadconfig(&shapes);
  const int64_t last = smaller(2 * end, (p.N + 15) / 16);
  in_panels(p, 2 * begin, last, 32, 2, [&](int64_t row, int64_t block) {
    alignas(64) int32_t sums[32 * 32];
    const bool two_rows = p.M - row > 16, two_columns = block + 1 < last;
    if (two_rows)
      two_columns ? multiply_tiles<true, true>(p, row, block, sums) : multiply_tiles<true, false>(p, row, block, sums);
    else
      two_columns ? multiply_tiles<false, true>(p, row, block, sums) : multiply_tiles<false, false>(p, row, block, sums);
    for (int64_t n = 0; n < (two_columns ? 2 : 1); ++n) {
      const Columns columns(p, 16 * (block + n));
      for (int64_t m = 0; m < smaller(32, p.M - row); ++m)
        columns.finish(p, row + m, load<Ints>(sums + 32 * m + 16 * n));
    }
  });
  _tile_release();
}
#endif

}  // namespace

const Int8Kernels LIGHTCONV_INT8 = {&round_rows, &multiply};
#if defined(__AVX512VNNI__)
const Int8Kernels amx_int8 = {&round_rows, &multiply_by_tiles};
#endif

}  // namespace lightconv
