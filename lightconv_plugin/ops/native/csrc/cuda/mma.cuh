// Sums over channels on tensor cores: mma m16n8k16 of 16-bit types with float32 sums (sm_80 and later).
#pragma once

#include "cuda/scalar.cuh"

namespace lightconv::cuda {

// d += a b^T by a warp, for a (16, 16), b (8, 16) and d (16, 8). Lane l = 4 g + q holds columns 2 q, 2 q + 1, 2 q + 8
// and 2 q + 9 of rows g and g + 8 of a and of row g of b, and columns 2 q and 2 q + 1 of rows g and g + 8 of d.
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

// Loads four matrices of 8 x 8 16-bit numbers, or their transposes, from shared memory. Lane l passes the address of
// row l % 8 of matrix l / 8, and gets from each matrix the numbers at row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1.
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

// Sums of one warp over channels: products of 16 positions of the gradient with the input rows that they reach, 16 rows
// per step.
template <class S, int Steps> struct MmaProducts {
  float sum[Steps][2][4] = {};

  // grad, x: the first position and the first input row, in shared memory; `steps` may be less than Steps
  __device__ __forceinline__ void add(const unsigned char* grad, const unsigned char* x, int row_bytes, int bytes,
                                      int steps = Steps) {
    const int lane = threadIdx.x % 32, at = lane % 16 * row_bytes + lane / 16 * 16;
#pragma unroll 1
    for (int c = 0; c < bytes; c += MMA_CHANNELS * 2) {
      Word a[4];
      load_matrices<false>(a, grad + at + c);
#pragma unroll
      for (int n = 0; n < Steps; ++n) {
        if (n >= steps) continue;
        Word b[4];
        load_matrices<false>(b, x + n * 16 * row_bytes + at + c);
        mma<S>(sum[n][0], a, {b[0], b[2]});
        mma<S>(sum[n][1], a, {b[1], b[3]});
      }
    }
  }

  // True if a sum is not finite.
  __device__ __forceinline__ bool spoiled() const {
    float zero = 0.0f;
#pragma unroll
    for (int n = 0; n < Steps; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) zero += sum[n][i / 4][i % 4] * 0.0f;
    return zero != 0.0f;
  }

  // Calls act(position in the warp, index of the input row, sum) for each sum.
  template <class Do> __device__ __forceinline__ void each(const Do& act) const {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < Steps; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) act(g + i % 4 / 2 * 8, n * 16 + i / 4 * 8 + 2 * q + i % 2, sum[n][i / 4][i % 4]);
  }
};

}  // namespace lightconv::cuda
