// The convolution of a few positions by a few vectors of channels, in registers, and the sums of its gradients.
//
// MT outputs i = 0..MT-1 at consecutive positions read K + MT - 1 input rows q; output i takes row q with the weight
//   w[q * wq + i * wi],  0 <= q - i < K.
// A kernel k of LightConv: w = k, wq = 1, wi = -1. Rows of kernels W, one a position, row length L: w = W, wq = 1,
// wi = L - 1. The gradient of x is a convolution too, with taps in reverse: w = k + K - 1, wq = -1, wi = 1; and with
// the kernel of the row that is read: w = W + K - 1, wq = L - 1, wi = 1.
// The triangles where q - i leaves 0..K-1 are unrolled, so nothing outside a kernel's reach is ever multiplied.
// Wide: each weight is NV vectors, one a channel, instead of a number; wq and wi count weights of `wide` numbers.

// A stretch of consecutive positions; what stays the same from tile to tile.
template <class A>
struct Stretch {
  const A* x;              // input rows
  int64_t x_first;         // the position of the first of them
  int64_t x_row;           // from row to row
  int64_t begin, end;      // positions of input rows that exist
  int64_t padding;         // position t reads inputs from t - padding on
  int K;
  const A* w;              // as above, for position `w_first`
  int64_t w_first, w_step; // the weights of a tile at t begin at w + (t - w_first) * w_step
  int64_t wq, wi, wide;
};

// Positions t to t + MT - 1, at channels from c on.
template <class A, int MT, int NV, bool Wide>
[[gnu::noinline]] void tile(const Stretch<A>& s, int64_t t, int64_t c, A* out, int64_t out_row) {
  Vec<A> acc[MT][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec<A>{};

  const int64_t first = t - s.padding, wide = Wide ? s.wide : 1, x_row = s.x_row, wq = s.wq * wide, wi = s.wi * wide;
  const A* x_0 = s.x + (first - s.x_first) * x_row + c;  // of q = 0; it may lie before the first row that exists
  const A* w_0 = s.w + (t - s.w_first) * s.w_step + (Wide ? c : 0);
  auto row = [&]<int First, int Last>(int q) __attribute__((always_inline)) {
    const A* x = x_0 + q * x_row;
    Vec<A> xs[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) xs[v] = load(x + v * kLanes<A>);
    const A* w = w_0 + q * wq;
#pragma GCC unroll 16
    for (int i = First; i <= Last; ++i) {
      const A* here = w + i * wi;
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        if constexpr (Wide)
          acc[i][v] += load(here + v * kLanes<A>) * xs[v];
        else
          acc[i][v] += *here * xs[v];
      }
    }
  };
  const int K = s.K, most = K + MT - 1;
  const int begin = s.begin > first ? static_cast<int>(s.begin - first) : 0;  // the rows that exist
  const int end = s.end - first < most ? static_cast<int>(s.end - first) : most;
  [&]<int... Q>(std::integer_sequence<int, Q...>) {
    ((Q >= begin && Q < end ? row.template operator()<0, Q>(Q) : void()), ...);
  }(std::make_integer_sequence<int, MT - 1>{});
  const int full_end = end < K ? end : K;
  for (int q = begin > MT - 1 ? begin : MT - 1; q < full_end; ++q) row.template operator()<0, MT - 1>(q);
  [&]<int... Q>(std::integer_sequence<int, Q...>) {
    ((K + Q >= begin && K + Q < end ? row.template operator()<Q + 1, MT - 1>(K + Q) : void()), ...);
  }(std::make_integer_sequence<int, MT - 1>{});

#pragma GCC unroll 16
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(out + i * out_row + v * kLanes<A>, acc[i][v]);
}

// Vectors a tile has at most, and positions by that number: as many sums as registers hold beside inputs and weights.
// Few sizes, since each is compiled; float64 is for tests, and gets the smallest.
template <class A>
constexpr int kMaxNV = sizeof(A) == 8 ? 1 : LIGHTCONV_BITS == 512 ? 4 : 2;
template <class A>
constexpr int tallest(int nv) {
  if (sizeof(A) == 8) return 4;
  return LIGHTCONV_BITS == 512 && nv <= 2 ? 12 : 6;
}

// The widest tile for what is left, and the tallest: no taller than the kernel, whose triangles it would not fit.
template <class A>
constexpr int tile_width(int vectors) {
  for (int nv : {4, 2})
    if (nv <= vectors && nv <= kMaxNV<A>) return nv;
  return 1;
}
template <class A>
constexpr int tile_height(int64_t positions, int64_t K, int nv) {
  const int64_t most = positions < K ? positions : K;
  for (int height : {12, 6, 4, 3, 2})
    if (height <= most && height <= tallest<A>(nv)) return height;
  return 1;
}

constexpr int kFewTaps = 8;
constexpr int64_t kAhead = 4;  // rows between what is asked of the memory and what is used

// Calls call<K>(), K = 1..kFewTaps.
template <class Call>
inline void by_taps(int64_t K, Call call) {
  by_number<8, 7, 6, 5, 4, 3, 2, 1>(K, call);
}

constexpr int kFewRows = 8;  // positions at once where one kernel serves them, so that a row is read (7 + K) / 8 times

// Few taps, of inputs that all exist, MT positions after another.
template <class A, int K, int MT, bool Wide>
void few_taps(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  constexpr int n = kLanes<A>;
  const int64_t x_row = s.x_row, wq = s.wq * (Wide ? s.wide : 1);
  const A* x = s.x + (t - s.padding - s.x_first) * x_row;
  for (; t + MT <= t_end; t += MT, x += MT * x_row, out += MT * out_row) {
    const A* from = s.w + (t - s.w_first) * s.w_step;
    A narrow[K];
#pragma GCC unroll 8
    for (int j = 0; !Wide && j < K; ++j) narrow[j] = from[j * wq];
    constexpr int64_t ahead = MT > kAhead ? MT : kAhead;
    for (int64_t i = 0; i < MT && t + ahead + i < t_end; ++i) ask_for(x + (K - 1 + ahead + i) * x_row, vectors * n);
    for (int v = 0; v < vectors * n; v += n) {
      Vec<A> acc[MT];
#pragma GCC unroll 8
      for (int i = 0; i < MT; ++i) acc[i] = Vec<A>{};
#pragma GCC unroll 16
      for (int q = 0; q < K + MT - 1; ++q) {
        const Vec<A> xs = load(x + q * x_row + v);
#pragma GCC unroll 8
        for (int i = 0; i < MT; ++i) {
          if (q < i || q - i >= K) continue;
          if constexpr (Wide)
            acc[i] += load(from + (q - i) * wq + v) * xs;
          else
            acc[i] += narrow[q - i] * xs;
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < MT; ++i) store(out + i * out_row + v, acc[i]);
    }
  }
  if constexpr (MT > 1) few_taps<A, K, 1, Wide>(s, t, t_end, vectors, out, out_row);
}

// Positions t..t_end of it to out, whose rows are out_row apart; `vectors` vectors of channels.
template <class A, bool Wide>
void convolve(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  const int64_t inner = s.begin + s.padding, inner_end = s.end + s.padding - s.K + 1;  // positions that read no edge
  if (s.K <= kFewTaps && inner < t_end && inner_end > t) {
    const int64_t from = inner > t ? inner : t, to = inner_end < t_end ? inner_end : t_end;
    if (from < to) {
      if (t < from) convolve<A, Wide>(s, t, from, vectors, out, out_row);
      by_taps(s.K, [&]<int K>() {
        A* here = out + (from - t) * out_row;
        s.w_step == 0 ? few_taps<A, K, kFewRows, Wide>(s, from, to, vectors, here, out_row)
                      : few_taps<A, K, 1, Wide>(s, from, to, vectors, here, out_row);
      });
      if (to < t_end) convolve<A, Wide>(s, to, t_end, vectors, out + (to - t) * out_row, out_row);
      return;
    }
  }
  int height = 0;
  for (; t < t_end; t += height, out += height * out_row) {
    for (int v = 0, nv = 0; v < vectors; v += nv) {
      nv = tile_width<A>(vectors - v);
      if (v == 0) height = tile_height<A>(t_end - t, s.K, nv);
      by_number<4, 2, 1>(nv, [&]<int NV>() {
        by_number<12, 6, 4, 3, 2, 1>(height, [&]<int MT>() {
          if constexpr (NV <= kMaxNV<A> && MT <= tallest<A>(NV))
            tile<A, MT, NV, Wide>(s, t, v * kLanes<A>, out + v * kLanes<A>, out_row);
        });
      });
    }
  }
}

// ---- Gradients of one kernel for all positions: sums over positions, lanes are channels ----

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

// The same of few taps, added to sums (K, width), GT positions after another.
template <class A, int K, int GT>
void few_tap_sums(const A* g, const A* x, int64_t row, int64_t t, int64_t positions, int64_t begin, int64_t end,
                  int64_t width, A* sums) {
  for (; t + GT <= positions; t += GT) {
    const bool whole = t >= begin && t + GT + K - 1 <= end;
    if (GT > 1 && !whole) {
      few_tap_sums<A, K, 1>(g, x, row, t, t + GT, begin, end, width, sums);
      continue;
    }
    constexpr int64_t ahead = GT > kAhead ? GT : kAhead;
    const A *here = x + t * row, *own = g + t * row;
    for (int64_t i = 0; i < GT && t + ahead + i < positions; ++i)
      ask_for(own + (ahead + i) * row, width), ask_for(here + (K - 1 + ahead + i) * row, width);
    for (int64_t v = 0; v < width; v += kLanes<A>) {
      Vec<A> acc[K], gs[GT];
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) acc[j] = load(sums + j * width + v);
#pragma GCC unroll 8
      for (int i = 0; i < GT; ++i) gs[i] = load(own + i * row + v);
#pragma GCC unroll 16
      for (int q = 0; q < K + GT - 1; ++q) {
        if (!whole && (t + q < begin || t + q >= end)) continue;
        const Vec<A> xs = load(here + q * row + v);
#pragma GCC unroll 8
        for (int i = 0; i < GT; ++i)
          if (q >= i && q - i < K) acc[q - i] += gs[i] * xs;
      }
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) store(sums + j * width + v, acc[j]);
    }
  }
  if constexpr (GT > 1) few_tap_sums<A, K, 1>(g, x, row, t, positions, begin, end, width, sums);
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
    by_number<16, 8, 4, 2, 1>(jt, [&]<int JT>() {
      if constexpr (JT <= kMostTaps<A>) tap_sums<A, JT>(g, from, row, positions, begin - j, end - j, sums);
    });
    for (; done < j + jt; ++done) use(done, sums[done - j]);
  }
}

// ---- Gradients of a kernel for each position: inner products over channels, lanes are inputs ----

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
    by_number<3, 2, 1>(sv, [&]<int SV>() {
      if (rows == kProductRows) return inner_products<A, kProductRows, SV>(g, g_row, x, xt_row, R, to, out_row);
      for (int i = 0; i < rows; ++i) inner_products<A, 1, SV>(g + i * g_row, g_row, x, xt_row, R, to + i * out_row, out_row);
    });
  }
}
