// Sums over channels on tensor cores: mma m16n8k16 of 16-bit types with float32 sums (sm_80 and later).
#pragma once

#include "cuda/scalar.cuh"

namespace lightconv::cuda {

// d += a b^T of a warp: a (16, 16), b (8, 16). Lane l = 4 g + q holds rows g and g + 8 of a and row g of b at columns
// 2 q, 2 q + 1 and 8 further; of d rows g and g + 8 at columns 2 q and 2 q + 1.
#if defined(LIGHTCONV_ON_CPU)
template <class S> void mma(float (&d)[4], const Word (&a)[4], const Word (&b)[2]);
#else
template <class S> __device__ __forceinline__ void mma(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (is_bfloat16<S>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  static_assert(sizeof(S) == 0, "this mma needs sm_80");
#endif
}
#endif

// Four matrices of 8 x 8 numbers of 16 bits, or their transposes: lane l gives the address of row l % 8 of matrix l / 8,
// and gets of each matrix the pair at row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1.
#if defined(LIGHTCONV_ON_CPU)
template <bool Transposed> void load_matrices(Word (&to)[4], const unsigned char* row);
#else
template <bool Transposed> __device__ __forceinline__ void load_matrices(Word (&to)[4], const unsigned char* row) {
  const Word at = static_cast<Word>(__cvta_generic_to_shared(row));
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
#endif

// Sums of one warp: 16 positions and the 16 + K - 1 input rows that they reach, of one head.
template <Case C> struct MmaSums {
  static constexpr int columns = ceil_div(MMA_POSITIONS + grad_tile(C).taps - 1, MMA_ROWS);
  float sum[columns][4] = {};
  int t, h, g, q;

  __device__ __forceinline__ MmaSums()
      : t(threadIdx.x / 32 % (C.positions / MMA_POSITIONS) * MMA_POSITIONS),
        h(threadIdx.x / 32 / (C.positions / MMA_POSITIONS)),
        g(threadIdx.x % 32 / 4),
        q(threadIdx.x % 4) {}

  __device__ __forceinline__ void add(const unsigned char* grad, const unsigned char* x) {
    using S = typename Scalar<C.type>::type;
    constexpr GradTile tile = grad_tile(C);
#pragma unroll 1
    for (int c = 0; c < tile.chunk; c += MMA_CHANNELS) {
      const int column = (h * tile.chunk + c + 2 * q) * static_cast<int>(sizeof(S));
      const auto word = [&](const unsigned char* rows, int row, int next) {
        return *reinterpret_cast<const Word*>(rows + tile.offset(row) + column + next);
      };
      const Word a[4] = {word(grad, t + g, 0), word(grad, t + g + 8, 0), word(grad, t + g, 16), word(grad, t + g + 8, 16)};
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        const Word b[2] = {word(x, t + n * MMA_ROWS + g, 0), word(x, t + n * MMA_ROWS + g, 16)};
        mma<S>(sum[n], a, b);
      }
    }
  }

  // act(position of the block, tap, head of the block, sum) on each; some taps are outside the band
  template <class Do> __device__ __forceinline__ void each(const Do& act) const {
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = g + i / 2 * 8, row = n * MMA_ROWS + 2 * q + i % 2;
        act(t + position, row - position, h, sum[n][i]);
      }
  }
};

}  // namespace lightconv::cuda
