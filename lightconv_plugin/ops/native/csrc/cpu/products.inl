// Gradients of kernels: products of output gradients and inputs.

// ---- One kernel for all positions: sums over positions, lanes are channels ----

// sums[j] += g[t] * x[t + j] for all t < positions and j < JT, where rows begin..end of x exist; x row 0 is that of
// t = 0, j = 0, and rows are `row` numbers apart.
template <class A, int JT>
void tap_sums(const A* g, const A* x, int64_t row, int64_t positions, int64_t begin, int64_t end, Vec<A>* sums) {
  constexpr int GT = 4;  // positions whose gradients are held while the inputs pass by
  Vec<A> acc[JT];
#pragma GCC unroll 16
  for (int j = 0; j < JT; ++j) acc[j] = Vec<A>{};
  int64_t t = 0;
  for (; t + GT <= positions; t += GT) {
    Vec<A> gs[GT];
#pragma GCC unroll 4
    for (int i = 0; i < GT; ++i) gs[i] = load(g + (t + i) * row);
    const A* here = x + t * row;
    auto input = [&]<int Q>() __attribute__((always_inline)) {
      const Vec<A> xs = load(here + Q * row);
#pragma GCC unroll 4
      for (int i = 0; i < GT; ++i)
        if (Q - i >= 0 && Q - i < JT) acc[Q - i] += gs[i] * xs;
    };
    [&]<int... Q>(std::integer_sequence<int, Q...>) {
      if (t >= begin && t + JT + GT - 1 <= end) {
        (input.template operator()<Q>(), ...);
      } else {
        ((t + Q >= begin && t + Q < end ? input.template operator()<Q>() : void()), ...);
      }
    }(std::make_integer_sequence<int, JT + GT - 1>{});
  }
  for (; t < positions; ++t) {
    const Vec<A> gs = load(g + t * row);
#pragma GCC unroll 16
    for (int j = 0; j < JT; ++j)
      if (t + j >= begin && t + j < end) acc[j] += gs * load(x + (t + j) * row);
  }
#pragma GCC unroll 16
  for (int j = 0; j < JT; ++j) sums[j] = acc[j];
}

// The same of few taps, added to sums (K, width), a position after the other.
template <class A, int K>
void few_tap_sums(const A* g, const A* x, int64_t row, int64_t positions, int64_t begin, int64_t end, int64_t width,
                  A* sums) {
  for (int64_t t = 0; t < positions; ++t, g += row, x += row) {
    if (t + kAhead < positions) ask_for(g + kAhead * row, width), ask_for(x + (K - 1 + kAhead) * row, width);
    const bool whole = t >= begin && t + K <= end;
    for (int64_t v = 0; v < width; v += kLanes<A>) {
      const Vec<A> gs = load(g + v);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        if (!whole && (t + j < begin || t + j >= end)) continue;
        store(sums + j * width + v, load(sums + j * width + v) + gs * load(x + j * row + v));
      }
    }
  }
}

template <class A>
constexpr int kMostTaps = sizeof(A) == 8 ? 4 : LIGHTCONV_BITS == 512 ? 16 : 8;

// For one vector of channels: calls use(j, sum) once for each tap j of K.
template <class A, class Use>
void each_tap_sum(const A* g, const A* x, int64_t row, int64_t positions, int64_t begin, int64_t end, int K, Use use) {
  Vec<A> sums[kMostTaps<A>];
  const int jt = K >= kMostTaps<A> ? kMostTaps<A> : K >= 8 ? 8 : K >= 4 ? 4 : K >= 2 ? 2 : 1;
  for (int done = 0; done < K;) {
    const int j = done + jt <= K ? done : K - jt;  // the last block overlaps the one before
    const A* from = x + j * row;
    switch (jt) {
      case 16:
        if constexpr (kMostTaps<A> >= 16) tap_sums<A, 16>(g, from, row, positions, begin - j, end - j, sums);
        break;
      case 8:
        if constexpr (kMostTaps<A> >= 8) tap_sums<A, 8>(g, from, row, positions, begin - j, end - j, sums);
        break;
      case 4: tap_sums<A, 4>(g, from, row, positions, begin - j, end - j, sums); break;
      case 2: tap_sums<A, 2>(g, from, row, positions, begin - j, end - j, sums); break;
      default: tap_sums<A, 1>(g, from, row, positions, begin - j, end - j, sums);
    }
    for (; done < j + jt; ++done) use(done, sums[done - j]);
  }
}

// ---- A kernel for each position: inner products over channels, lanes are inputs ----

template <class A>
inline void transpose(Vec<A> (&m)[kLanes<A>]) {
  constexpr int n = kLanes<A>;
  Index<A> low, high;  // interleave the lower halves, or the upper halves, of two vectors
  for (int i = 0; i < n; ++i) {
    low[i] = i / 2 + (i % 2) * n;
    high[i] = low[i] + n / 2;
  }
  for (int stage = 1; stage < n; stage *= 2) {
    Vec<A> next[n];
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = __builtin_shuffle(m[i], m[i + n / 2], low);
      next[2 * i + 1] = __builtin_shuffle(m[i], m[i + n / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) m[i] = next[i];
  }
}

// out[i][s] = sum over r < R of g[i][r] * xt[r][s], for MT rows of g and SV vectors of inputs
template <class A, int MT, int SV>
void inner_products(const A* g, int64_t g_row, const A* xt, int64_t xt_row, int64_t R, A* out, int64_t out_row) {
  Vec<A> acc[MT][SV];
#pragma GCC unroll 8
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < SV; ++v) acc[i][v] = Vec<A>{};
  for (int64_t r = 0; r < R; ++r) {
    Vec<A> xs[SV];
#pragma GCC unroll 4
    for (int v = 0; v < SV; ++v) xs[v] = load(xt + r * xt_row + v * kLanes<A>);
#pragma GCC unroll 8
    for (int i = 0; i < MT; ++i) {
      const A gi = g[i * g_row + r];
#pragma GCC unroll 4
      for (int v = 0; v < SV; ++v) acc[i][v] += gi * xs[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < SV; ++v) store(out + i * out_row + v * kLanes<A>, acc[i][v]);
}

constexpr int kProductRows = LIGHTCONV_BITS == 512 ? 8 : 4;  // MT
constexpr int kProductVectors = 3;                           // SV at most

template <class A>
void inner_products(const A* g, int64_t g_row, int rows, const A* xt, int64_t xt_row, int64_t R, int vectors, A* out,
                    int64_t out_row) {
  for (int v = 0; v < vectors; v += kProductVectors) {
    const int sv = vectors - v < kProductVectors ? vectors - v : kProductVectors;
    const A* x = xt + v * kLanes<A>;
    A* to = out + v * kLanes<A>;
    if (rows == kProductRows) {
      switch (sv) {
        case 3: inner_products<A, kProductRows, 3>(g, g_row, x, xt_row, R, to, out_row); break;
        case 2: inner_products<A, kProductRows, 2>(g, g_row, x, xt_row, R, to, out_row); break;
        default: inner_products<A, kProductRows, 1>(g, g_row, x, xt_row, R, to, out_row);
      }
    } else {
      for (int i = 0; i < rows; ++i) {
        switch (sv) {
          case 3: inner_products<A, 1, 3>(g + i * g_row, g_row, x, xt_row, R, to + i * out_row, out_row); break;
          case 2: inner_products<A, 1, 2>(g + i * g_row, g_row, x, xt_row, R, to + i * out_row, out_row); break;
          default: inner_products<A, 1, 1>(g + i * g_row, g_row, x, xt_row, R, to + i * out_row, out_row);
        }
      }
    }
  }
}
