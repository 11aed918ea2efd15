// Philox4x32 (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): random numbers computed from a
// counter, without state, so that the backward pass recomputes the DropConnect mask of the forward pass. CPU and CUDA
// draw the same numbers.
//
// Tap j of the kernel n = (t * B + b) * H + h has word j % 4 of the block with counter (n low, n high, j / 4, 0) and
// key = the two halves of the seed. Its weight is kept if this word is at least round(p * 2^32), p in float32.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define LIGHTCONV_INLINE __host__ __device__ __forceinline__
#else
#define LIGHTCONV_INLINE static inline  // internal linkage: the file is compiled for several vector widths
#endif

namespace lightconv {

constexpr unsigned int kPhiloxA = 0xD2511F53u, kPhiloxB = 0xCD9E8D57u;
constexpr unsigned int kPhiloxKeyA = 0x9E3779B9u, kPhiloxKeyB = 0xBB67AE85u;
constexpr int kPhiloxRounds = 7;  // 7 pass BigCrush (Salmon et al., 2011); 10 is the authors' default

struct Words {
  unsigned int word[4];
};

LIGHTCONV_INLINE Words philox(Words counter, unsigned int key0, unsigned int key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const unsigned long long a = static_cast<unsigned long long>(kPhiloxA) * counter.word[0];
    const unsigned long long b = static_cast<unsigned long long>(kPhiloxB) * counter.word[2];
    counter = {{static_cast<unsigned int>(b >> 32) ^ counter.word[1] ^ key0, static_cast<unsigned int>(b),
                static_cast<unsigned int>(a >> 32) ^ counter.word[3] ^ key1, static_cast<unsigned int>(a)}};
    key0 += kPhiloxKeyA;
    key1 += kPhiloxKeyB;
  }
  return counter;
}

}  // namespace lightconv
