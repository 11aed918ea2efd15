// The forward pass and the gradient of x, which is a convolution, too: first of a tile, a few positions by a few
// vectors of channels, in registers; then of a unit.
//
// MT outputs i = 0..MT-1 at consecutive positions read K + MT - 1 input rows q; output i takes row q with the weight
//   weights[q * by_row + i * by_output],  0 <= q - i < K.
// Forward:
//   LightConv's kernel k:                      weights = k,          by_row = 1,      by_output = -1
//   kernels W, a row of L numbers a position:  weights = W,          by_row = 1,      by_output = L - 1
// The gradient of x has the taps in reverse, and with W uses the kernel of the row that is read:
//   kernel k:                                  weights = k + K - 1,  by_row = -1,     by_output = 1
//   kernels W:                                 weights = W + K - 1,  by_row = L - 1,  by_output = 1
// The first and the last MT - 1 rows, which only some of the outputs take, are unrolled, so nothing outside of a kernel
// is ever multiplied.
// Wide: a weight is NV vectors, one number per channel, instead of one number; by_row and by_output count weights of
// `weight_size` numbers.

// A stretch of consecutive positions: the arguments that all its tiles share.
template <class A>
struct Stretch {
  Rows<A> x;
  int64_t padding;  // position t reads inputs from t - padding on
  int K;
  const A* weights;  // as above, of position `weights_first`; those of t start (t - weights_first) * weights_step later
  int64_t weights_first, weights_step;
  int64_t by_row, by_output, weight_size;
  const A* weights_at(int64_t t) const { return weights + (t - weights_first) * weights_step; }
};

// Computes positions t to t + MT - 1 at NV vectors of channels from c on.
template <class A, int MT, int NV, bool Wide>
[[gnu::noinline]] void tile(const Stretch<A>& s, int64_t t, int64_t c, A* out, int64_t out_row) {
  Vec<A> acc[MT][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec<A>{};

  const int64_t first = t - s.padding, size = Wide ? s.weight_size : 1, x_row = s.x.row;
  const int64_t by_row = s.by_row * size, by_output = s.by_output * size;
  const A* x_0 = s.x.at(first) + c;  // of q = 0; it may lie before the first row that exists
  const A* weights_0 = s.weights_at(t) + (Wide ? c : 0);
  auto row = [&]<int First, int Last>(int q) __attribute__((always_inline)) {
    const A* x = x_0 + q * x_row;
    Vec<A> xs[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) xs[v] = load(x + v * kLanes<A>);
    const A* of_row = weights_0 + q * by_row;
#pragma GCC unroll 16
    for (int i = First; i <= Last; ++i) {
      const A* weight = of_row + i * by_output;
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        if constexpr (Wide)
          acc[i][v] += load(weight + v * kLanes<A>) * xs[v];
        else
          acc[i][v] += *weight * xs[v];
      }
    }
  };
  const int K = s.K, most = K + MT - 1;
  const int begin = s.x.first > first ? static_cast<int>(s.x.first - first) : 0;  // the rows that exist
  const int end = s.x.last - first < most ? static_cast<int>(s.x.last - first) : most;
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

// The most vectors of a tile, and the most positions of a tile of nv vectors: as many sums as registers hold beside
// inputs and weights. There are few sizes, since each is compiled. float64 is for tests, and has only the smallest.
template <class A>
constexpr int kMaxNV = sizeof(A) == 8 ? 1 : LIGHTCONV_BITS == 512 ? 4 : 2;
template <class A>
constexpr int tallest(int nv) {
  if (sizeof(A) == 8) return 4;
  return LIGHTCONV_BITS == 512 && nv <= 2 ? 12 : 6;
}

// Width and height of the largest tile for the vectors and positions that are left. A tile has at most K positions, as
// its unrolled rows require.
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

constexpr int kFewRows = 8;  // positions at once if they share a kernel: a row is then read (7 + K) / 8 times

// Few taps, whose inputs all exist, MT positions at a time.
template <class A, int K, int MT, bool Wide>
void few_taps(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  constexpr int n = kLanes<A>;
  const int64_t x_row = s.x.row, by_row = s.by_row * (Wide ? s.weight_size : 1);
  const A* x = s.x.at(t - s.padding);
  for (; t + MT <= t_end; t += MT, x += MT * x_row, out += MT * out_row) {
    const A* weights = s.weights_at(t);
    A taps[K];
#pragma GCC unroll 8
    for (int j = 0; !Wide && j < K; ++j) taps[j] = weights[j * by_row];
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
            acc[i] += load(weights + (q - i) * by_row + v) * xs;
          else
            acc[i] += taps[q - i] * xs;
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < MT; ++i) store(out + i * out_row + v, acc[i]);
    }
  }
  if constexpr (MT > 1) few_taps<A, K, 1, Wide>(s, t, t_end, vectors, out, out_row);
}

// Writes positions t..t_end of a stretch to out, whose rows have the stride out_row; `vectors` vectors of channels.
template <class A, bool Wide>
void convolve(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  const int64_t inner = s.x.first + s.padding, inner_end = s.x.last + s.padding - s.K + 1;  // all inputs exist
  if (s.K <= kFewTaps && inner < t_end && inner_end > t) {
    const int64_t from = inner > t ? inner : t, to = inner_end < t_end ? inner_end : t_end;
    if (from < to) {
      if (t < from) convolve<A, Wide>(s, t, from, vectors, out, out_row);
      by_taps(s.K, [&]<int K>() {
        A* of_from = out + (from - t) * out_row;
        s.weights_step == 0 ? few_taps<A, K, kFewRows, Wide>(s, from, to, vectors, of_from, out_row)
                            : few_taps<A, K, 1, Wide>(s, from, to, vectors, of_from, out_row);
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

// ---- Units ----

// Convolves the rows of x with the unit's kernels, or with `flip` the rows of a gradient with the reversed kernels, and
// writes the place's positions of a tensor. Kernels per position start at the place's first position, with `flip` at
// the gradient's.
template <class A, class S>
void convolve_unit(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const Rows<A>& x,
                   bool flip, void* tensor) {
  const int64_t K = conv.K, padding = flip ? K - 1 - conv.padding_l : conv.padding_l, taps = scratch.taps;
  const int64_t last_tap = flip ? K - 1 : 0;  // the tap that comes first
  const bool wide = units.lanes == Lanes::channels_of_heads;
  Stretch<A> stretch{x, padding, static_cast<int>(K), nullptr, 0, 0, flip ? -1 : 1, flip ? 1 : -1, scratch.row};
  if (units.by_position) {
    stretch.weights = scratch.used_kernels + last_tap;
    stretch.weights_first = flip ? padding + x.first : place.t, stretch.weights_step = taps;
    (flip ? stretch.by_row : stretch.by_output) = taps - 1;
  } else if (wide) {
    stretch.weights = scratch.kernels_by_channel + last_tap * scratch.row;
  } else {
    stretch.weights = static_cast<const A*>(conv.light) + place.head * K + last_tap;
  }
  const int vectors = static_cast<int>(scratch.row / kLanes<A>);
  write_results<A, S>(conv, units, scratch, place, tensor, [&](A* out, int64_t out_row) {
    for (int64_t block = 0; block < place.blocks; ++block) {
      if (wide)
        convolve<A, true>(stretch, place.t, place.t_end, vectors, out, out_row);
      else
        convolve<A, false>(stretch, place.t, place.t_end, vectors, out, out_row);
      out += scratch.row, stretch.x.data += x.block, stretch.weights += units.by_position ? scratch.kernel_block : K;
    }
  });
}

template <class S>
void forward_units(const Conv& conv, const Units& units, void* out, void* memory, int64_t begin, int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, false, Arena(memory));
  const auto enter = [&](const Place& place) { lay_out_shared(conv, units, place, scratch); };
  each_sentence(conv, units, begin, end, enter, [&](const Place& place) {
    if (units.lanes == Lanes::heads) return convolve_heads<A, S>(conv, units, scratch, place, out);
    const bool packed = conv.K > kFewTaps || place.first < 0 || !in_place<A, S>(units, place);
    const Rows<A> x = rows_of<A, S>(conv, units, scratch, place, conv.x, place.first, place.last, packed, scratch.x);
    if (units.by_position) make_kernels<A, S>(conv, scratch, place, place.t, place.t_end);
    convolve_unit<A, S>(conv, units, scratch, place, x, false, out);
  });
}
