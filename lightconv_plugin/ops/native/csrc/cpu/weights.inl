// Kernels in scratch memory, as the convolution uses them: softmax, its gradient, DropConnect. A row has L numbers in
// NV vectors; the first K are the kernel. NV = 0: the number of vectors is only known at run time, L / lanes. Rows are
// read and written in whole vectors, so that no load has to wait for smaller stores to the same bytes.

// Returns v with `other` in each lane i whose first + i is not in begin..end.
template <class A>
inline Vec<A> where_from(int first, int begin, int end, Vec<A> v, A other) {
  const Index<A> at = lane_numbers<A>() + first;
  return (at >= begin) & (at < end) ? v : Vec<A>{} + other;
}

// Writes the kernel `to` of a row of K logits: their softmax, or the logits themselves. It is 0 from K on. L numbers of
// `from` must be readable.
template <class A, class S, int NV>
inline void kernel_row(const S* from, int K, int L, bool softmax, A* to) {
  constexpr int n = kLanes<A>;
  constexpr A lowest = -__builtin_inf();
  const int vectors = NV > 0 ? NV : L / n;
  Vec<A> held[NV > 0 ? NV : 1];
  const auto put = [&](int v, Vec<A> value) __attribute__((always_inline)) {
    if constexpr (NV > 0)
      held[v] = value;
    else
      store(to + v * n, value);
  };
  const auto get = [&](int v) __attribute__((always_inline)) {
    if constexpr (NV > 0)
      return held[v];
    else
      return load(to + v * n);
  };
  const A none = softmax ? lowest : 0;
  Vec<A> most = Vec<A>{} + lowest;
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    const Vec<A> logits = where_from<A>(v * n, 0, K, load_as<A>(from + v * n), none);
    most = most > logits ? most : logits;
    put(v, logits);
  }
  if (softmax) {
    const Vec<A> top = largest<A>(most);
    Vec<A> total{};
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const Vec<A> e = exp_of(get(v) - top);
      total += e;
      put(v, e);
    }
    const Vec<A> scale = 1 / sum<A>(total);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const Vec<A> weights = get(v) * scale;
      put(v, v == vectors - 1 ? where_from<A>(v * n, 0, K, weights, 0) : weights);  // 0 from K on, even in a row of NaN
    }
  }
  if constexpr (NV > 0)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(to + v * n, held[v]);
}

// Writes the gradient of a row of logits, from the inner products of gradients and inputs; those outside of begin..end
// count as 0. `factors` are DropConnect's, and p is the result of the softmax; each may be null. L numbers of `product`
// must be readable.
template <class A, int NV>
inline void gradient_row(const A* product, int begin, int end, const A* factors, const A* p, int L, A* to) {
  constexpr int n = kLanes<A>;
  const int vectors = NV > 0 ? NV : L / n;
  Vec<A> held[NV > 0 ? NV : 1], total{};
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    Vec<A> grad = where_from<A>(v * n, begin, end, load(product + v * n), 0);
    if (factors != nullptr) grad *= load(factors + v * n);
    if (p != nullptr) total += load(p + v * n) * grad;
    if constexpr (NV > 0)
      held[v] = grad;
    else
      store(to + v * n, grad);
  }
  if (NV == 0 && p == nullptr) return;
  const Vec<A> inner = p != nullptr ? sum<A>(total) : Vec<A>{};
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    const Vec<A> grad = NV > 0 ? held[NV > 0 ? v : 0] : load(to + v * n);
    store(to + v * n, p != nullptr ? load(p + v * n) * (grad - inner) : grad);
  }
}

// Calls call<NV>() for rows of L numbers.
template <class A, class Call>
inline void by_vectors(int64_t L, Call call) {
  by_number<1, 2, 3, 4, 0>(L / kLanes<A>, call);
}

// Writes DropConnect's factors, 0 or 1 / (1 - p), for the L numbers of the kernel at n = (t * B + b) * H + h.
template <class A>
void keep_row(uint64_t seed, uint64_t n, float probability, int L, A* to) {
  constexpr int kBlocks = 8;
  const uint32_t threshold = least_kept(probability);
  const A kept = 1 / (1 - static_cast<A>(probability));
  for (int first = 0; first < L; first += 4 * kBlocks) {
    uint32_t words[4][kBlocks];
    for (int l = 0; l < kBlocks; ++l) {
      words[0][l] = static_cast<uint32_t>(n), words[1][l] = static_cast<uint32_t>(n >> 32);
      words[2][l] = static_cast<uint32_t>(first / 4 + l), words[3][l] = 0;
    }
    philox_lanes<kBlocks>(words, seed);
    const int count = L - first < 4 * kBlocks ? L - first : 4 * kBlocks;
    for (int j = 0; j < count; ++j) to[first + j] = words[j % 4][j / 4] >= threshold ? kept : 0;
  }
}

// ---- Kernels of a unit ----

// Writes the kernels of a place's heads at positions begin..end to scratch: normalised, and multiplied by DropConnect's
// factors.
template <class A, class S>
void make_kernels(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t begin, int64_t end) {
  const int K = static_cast<int>(conv.K), L = static_cast<int>(scratch.taps);
  const int64_t readable = conv.T * conv.B * conv.H * conv.K - L;  // the last index from which L numbers can be read
  const S* logits = static_cast<const S*>(conv.logits);
  by_vectors<A>(L, [&]<int NV>() {
    for (int64_t t = begin; t < end; ++t) {
      if (conv.dynamic && t + kAhead < end)
        ask_for(logits + (place.row(t + kAhead) * conv.H + place.head) * K, place.heads * K);
      for (int64_t h = 0; h < place.heads; ++h) {
        const int64_t n = place.row(t) * conv.H + place.head + h, at = h * scratch.kernel_block + (t - begin) * L;
        A* to = scratch.kernels + at;
        if (!conv.dynamic) {
          kernel_row<A, A, NV>(scratch.shared_kernels + h * L, K, L, false, to);
        } else if (n * K <= readable) {
          kernel_row<A, S, NV>(logits + n * K, K, L, conv.softmax, to);
        } else {
          S* row = reinterpret_cast<S*>(scratch.line);
          for (int j = 0; j < K; ++j) row[j] = logits[n * K + j];
          kernel_row<A, S, NV>(row, K, L, conv.softmax, to);
        }
        if (conv.dropconnect > 0) {
          A *factors = scratch.factors + at, *used = scratch.used_kernels + at;
          keep_row(conv.seed, static_cast<uint64_t>(place.number(t) * conv.H + place.head + h), conv.dropconnect, L,
                   factors);
          for (int j = 0; j < L; ++j) used[j] = to[j] * factors[j];
        }
      }
    }
  });
}

// Writes the kernels that all positions share, for one group of heads, to scratch in the layout for units.lanes.
template <class A>
void lay_out_shared(const Conv& conv, const Units& units, const Place& place, const Scratch<A>& scratch) {
  if (conv.dynamic) return;
  const int64_t K = conv.K, R = conv.C / conv.H;
  const A* light = static_cast<const A*>(conv.light) + place.head * K;
  if (units.lanes == Lanes::channels_of_heads) {
    for (int64_t c = 0; c < scratch.row; ++c)
      for (int64_t j = 0; j < K; ++j)
        scratch.kernels_by_channel[j * scratch.row + c] = light[(c < place.channels ? c / R : 0) * K + j];
  } else if (units.by_position) {
    const int64_t taps = units.lanes == Lanes::heads ? K : scratch.taps;
    for (int64_t h = 0; h < place.heads; ++h)
      for (int64_t j = 0; j < taps; ++j) scratch.shared_kernels[h * taps + j] = j < K ? light[h * K + j] : 0;
  }
}
