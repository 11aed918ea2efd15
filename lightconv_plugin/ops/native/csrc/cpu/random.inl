// Random words of random.h, a block in each lane.

// Blocks of words side by side in vectors: counters c[word][block] become random words.
template <int Blocks>
inline void philox_lanes(uint32_t (&c)[4][Blocks], uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int l = 0; l < Blocks; ++l) {
      const uint64_t a = static_cast<uint64_t>(kPhiloxA) * c[0][l], b = static_cast<uint64_t>(kPhiloxB) * c[2][l];
      c[0][l] = static_cast<uint32_t>(b >> 32) ^ c[1][l] ^ key0;
      c[1][l] = static_cast<uint32_t>(b);
      c[2][l] = static_cast<uint32_t>(a >> 32) ^ c[3][l] ^ key1;
      c[3][l] = static_cast<uint32_t>(a);
    }
    key0 += kPhiloxKeyA, key1 += kPhiloxKeyB;
  }
}

// A random word keeps what it stands for where it is at least this.
inline uint32_t least_kept(float probability) {
  return static_cast<uint32_t>(static_cast<double>(probability) * 4294967296.0 + 0.5);
}
