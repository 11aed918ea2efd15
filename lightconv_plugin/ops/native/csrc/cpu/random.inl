// Random words of random.h, a block in each lane.

template <int Bytes>
struct LanesOf {
  typedef uint64_t words __attribute__((vector_size(Bytes)));
  typedef int ints __attribute__((vector_size(Bytes)));
  typedef long long longs __attribute__((vector_size(Bytes)));
};

// The whole products of the lower halves of 64-bit lanes.
template <int Bytes, class Lanes = typename LanesOf<Bytes>::words>
inline Lanes low_products(Lanes a, Lanes b) {
#if defined(__x86_64__)  // the compiler does not see that one instruction does it
  using Ints = typename LanesOf<Bytes>::ints;
  using Longs = typename LanesOf<Bytes>::longs;
  if constexpr (Bytes == 16) return (Lanes)__builtin_ia32_pmuludq128((Ints)a, (Ints)b);
#if LIGHTCONV_BITS >= 256
  if constexpr (Bytes == 32) return (Lanes)__builtin_ia32_pmuludq256((Ints)a, (Ints)b);
#endif
#if LIGHTCONV_BITS >= 512
  if constexpr (Bytes == 64) return (Lanes)__builtin_ia32_pmuludq512_mask((Ints)a, (Ints)b, Longs{}, 0xFF);
#endif
#endif
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
}

// Blocks of words side by side in vectors: counters c[word][block] become random words. Lanes of 64 bits hold a word in
// their lower half, and anything above: first those of even blocks, then those of odd ones.
template <int Blocks>
inline void philox_lanes(uint32_t (&c)[4][Blocks], uint64_t seed) {
  constexpr int bytes = Blocks * 4 < kVectorBytes ? Blocks * 4 : kVectorBytes;
  using Lanes = typename LanesOf<bytes>::words;
  for (int first = 0; first < Blocks; first += bytes / 4) {
    Lanes given[4], made[2][4];
    for (int word = 0; word < 4; ++word) __builtin_memcpy(&given[word], c[word] + first, bytes);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      Lanes c0 = given[0] >> 32 * odd, c1 = given[1] >> 32 * odd, c2 = given[2] >> 32 * odd, c3 = given[3] >> 32 * odd;
      uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 7
      for (int round = 0; round < kPhiloxRounds; ++round, key0 += kPhiloxKeyA, key1 += kPhiloxKeyB) {
        const Lanes a = low_products<bytes>(c0, Lanes{} + kPhiloxA), b = low_products<bytes>(c2, Lanes{} + kPhiloxB);
        c0 = (b >> 32) ^ c1 ^ key0, c1 = b, c2 = (a >> 32) ^ c3 ^ key1, c3 = a;
      }
      made[odd][0] = c0, made[odd][1] = c1, made[odd][2] = c2, made[odd][3] = c3;
    }
    for (int word = 0; word < 4; ++word) {
      const Lanes both = (made[0][word] & 0xFFFFFFFF) | made[1][word] << 32;
      __builtin_memcpy(c[word] + first, &both, bytes);
    }
  }
}

// A random word keeps what it stands for where it is at least this.
inline uint32_t least_kept(float probability) {
  return static_cast<uint32_t>(static_cast<double>(probability) * 4294967296.0 + 0.5);
}
