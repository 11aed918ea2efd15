// One position of a causal convolution.

// Computes the kernels (H, K) of one position. The softmax is over all K taps, including those before the first input.
template <class T, class A>
void normalize(const T* logits, const Step& s, A* __restrict__ kernel) {
  const int64_t size = s.H * s.K;
  if (!s.softmax) {
    for (int64_t i = 0; i < size; ++i) kernel[i] = load(logits[i]);
    return;
  }
  for (int64_t head = 0; head < size; head += s.K) {
    for (int64_t i = head; i < head + s.K; ++i) kernel[i] = load(logits[i]);
    const A top = largest(kernel + head, s.K);
    for (int64_t i = head; i < head + s.K; ++i) kernel[i] -= top;
  }
  exponentials(kernel, size);  // of all heads at once: K numbers are too few for whole vectors
  for (int64_t head = 0; head < size; head += s.K) {
    const A scale = 1 / total(kernel + head, s.K);
    for (int64_t i = head; i < head + s.K; ++i) kernel[i] *= scale;
  }
}

// Weights (H, K) laid out as (K, C): channels that share a weight are too few to fill a vector.
template <class A>
void by_channel(const A* kernel, const Step& s, A* __restrict__ weights) {
  for (int64_t k = 0; k < s.K; ++k)
    for (int64_t c = 0; c < s.C; ++c) weights[k * s.C + c] = kernel[c / (s.C / s.H) * s.K + k];
}

// Adds Taps inputs times their weights to `sum`; if First, overwrites it. ByHead: `channels` channels share a weight,
// and the weights of the taps are neighbours. Otherwise each channel has its own weight, and the weights of a tap are
// neighbours.
template <int Taps, bool ByHead, bool First, class T, class A>
void add(const T* const* source, const A* weights, int64_t K, int64_t C, int64_t channels, A* __restrict__ sum) {
  for (int64_t head = 0; head < C; head += channels, weights += K) {
    for (int64_t c = head; c < head + channels; ++c) {
      A total = First ? A(0) : sum[c];
#pragma GCC unroll 8
      for (int t = 0; t < Taps; ++t) total += (ByHead ? weights[t] : weights[t * C + c]) * load(source[t][c]);
      sum[c] = total;
    }
  }
}

constexpr int kTaps = 8;  // taps at once: few reads and writes of the sum, few enough streams for the prefetcher

template <class T, class A>
void add(const Step& s, int64_t taps, bool first, const T* const* source, const A* weights, int64_t tap, A* sum) {
  by_number<8, 7, 6, 5, 4, 3, 2, 1>(taps, [&]<int Taps>() {
    if (by_head(s) && first) add<Taps, true, true>(source, weights + tap, s.K, s.C, s.C / s.H, sum);
    if (by_head(s) && !first) add<Taps, true, false>(source, weights + tap, s.K, s.C, s.C / s.H, sum);
    if (!by_head(s) && first) add<Taps, false, true>(source, weights + tap * s.C, 0, s.C, s.C, sum);
    if (!by_head(s) && !first) add<Taps, false, false>(source, weights + tap * s.C, 0, s.C, s.C, sum);
  });
}

// Computes a block of rows at a time, and a few taps at a time: each slot is then read from one end of the block to the
// other, which the hardware prefetcher follows, while the block's sums stay in the cache.
template <class T, class A = Sums<T>>
void step_rows(const Step& s, void* scratch, int64_t begin, int64_t end) {
  const int64_t rows = block_rows(s), size = s.H * s.K;
  A* kernels = static_cast<A*>(scratch);
  A* weights = kernels + rows * size;
  A* wide = weights + (by_head(s) ? 0 : s.K * s.C);
  T* ring = static_cast<T*>(s.ring);
  T* out = static_cast<T*>(s.out);
  const int64_t oldest = s.K - s.inputs;  // tap of the oldest input
  const T* source[kTaps];

  for (int64_t block = begin; block < end; block += rows) {
    const int64_t block_end = block + rows < end ? block + rows : end;
    for (int64_t n = block; n < block_end; ++n) {
      __builtin_memcpy(ring + (s.slot * s.M + n) * s.C, static_cast<const T*>(s.x) + n * s.C, s.C * sizeof(T));
      s.ancestors[s.slot * s.N + n] = static_cast<int32_t>(n);
      if (s.dynamic) normalize(static_cast<const T*>(s.weight) + n * size, s, kernels + (n - block) * size);
    }
    if (!s.dynamic && block == begin) normalize(static_cast<const T*>(s.weight), s, kernels);
    if (!by_head(s) && (s.dynamic || block == begin)) by_channel(kernels, s, weights);
    int64_t taps = s.inputs % kTaps == 0 ? kTaps : s.inputs % kTaps;
    for (int64_t i = 0; i < s.inputs; i += taps, taps = kTaps) {
      for (int64_t n = block; n < block_end; ++n) {
        for (int64_t t = 0; t < taps; ++t) {  // the oldest first
          const int64_t slot = (s.slot + s.K - (s.inputs - 1 - i - t)) % s.K;
          source[t] = ring + (slot * s.M + s.ancestors[slot * s.N + n]) * s.C;
        }
        A* sum = sizeof(A) == sizeof(T) ? reinterpret_cast<A*>(out) + n * s.C : wide + (n - block) * s.C;
        const A* used = by_head(s) ? kernels + (s.dynamic ? n - block : 0) * size : weights;
        add(s, taps, i == 0, source, used, oldest + i, sum);
      }
    }
    if (sizeof(A) != sizeof(T))
      for (int64_t i = 0; i < (block_end - block) * s.C; ++i) store(out[block * s.C + i], wide[i]);
  }
}
