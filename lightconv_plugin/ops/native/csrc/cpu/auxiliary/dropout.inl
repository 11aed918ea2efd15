// Dropout's mask, recomputed wherever it is needed.
//
// Numbers come in groups of 64: number 16 * w + l of group g is word w of the block with counter (n low, n high, 0, 1),
// n = 16 * g + l, and key = the seed's two halves; it is kept where that word is at least round(p * 2^32), p in
// float32. The last counter word is DropConnect's 0, so that one seed would not give both the same numbers.

constexpr int kGroup = 64, kLane = 16;

template <class S>
void dropout_groups(const S* x, S* y, int64_t count, float probability, uint64_t seed, int64_t begin, int64_t end) {
  const uint32_t threshold = least_kept(probability);
  const Sums<S> kept = 1 / (1 - static_cast<Sums<S>>(probability));
  for (int64_t group = begin; group < end; ++group) {
    uint32_t c[4][kLane];
    for (int l = 0; l < kLane; ++l) {
      const uint64_t n = static_cast<uint64_t>(group) * kLane + static_cast<uint64_t>(l);
      c[0][l] = static_cast<uint32_t>(n), c[1][l] = static_cast<uint32_t>(n >> 32), c[2][l] = 0, c[3][l] = 1;
    }
    philox_lanes<kLane>(c, seed);
    const S* from = x + group * kGroup;
    S* to = y + group * kGroup;
    const int64_t left = count - group * kGroup;
    if (left >= kGroup) {
      for (int w = 0; w < 4; ++w) {
        for (int l = 0; l < kLane; ++l) {
          const Sums<S> value = load(from[w * kLane + l]);  // read in any case, or lanes would part
          store(to[w * kLane + l], c[w][l] >= threshold ? value * kept : 0);
        }
      }
    } else {
      for (int64_t i = 0; i < left; ++i)
        store(to[i], c[i / kLane][i % kLane] >= threshold ? load(from[i]) * kept : 0);
    }
  }
}
