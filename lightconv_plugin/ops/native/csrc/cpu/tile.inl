// The convolution of a few positions by a few vectors of channels, in registers.
//
// MT outputs i = 0..MT-1 at consecutive positions read K + MT - 1 input rows q; output i takes row q with the weight
//   w[q * wq + i * wi],  0 <= q - i < K.
// A kernel k of LightConv: w = k, wq = 1, wi = -1. Rows of kernels W, one a position, row length L: w = W, wq = 1,
// wi = L - 1. The gradient of x is a convolution too, with taps in reverse: w = k + K - 1, wq = -1, wi = 1; and with
// the kernel of the row that is read: w = W + K - 1, wq = L - 1, wi = 1.
// The triangles where q - i leaves 0..K-1 are unrolled, so nothing outside a kernel's reach is ever multiplied.
// Wide: each weight is NV vectors, one a channel, instead of a number; wq and wi count weights of `wide` numbers.

template <class A>
struct TileTask {
  const A* x;       // row q = 0; it may lie before the first row that exists
  int64_t x_row;    // from row to row
  const A* w;
  int64_t wq, wi;
  int64_t wide;
  int q_begin, q_end;  // the rows that exist, of 0..K+MT-2
  int K;
  A* out;
  int64_t out_row;
};

template <class A, int MT, int NV, bool Wide>
void tile(const TileTask<A>& task) {
  Vec<A> acc[MT][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MT; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec<A>{};

  auto row = [&]<int First, int Last>(int q) __attribute__((always_inline)) {
    const A* x = task.x + q * task.x_row;
    Vec<A> xs[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) xs[v] = load(x + v * kLanes<A>);
    const A* w = task.w + q * task.wq * (Wide ? task.wide : 1);
#pragma GCC unroll 16
    for (int i = First; i <= Last; ++i) {
      const A* here = w + i * task.wi * (Wide ? task.wide : 1);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        if constexpr (Wide)
          acc[i][v] += load(here + v * kLanes<A>) * xs[v];
        else
          acc[i][v] += *here * xs[v];
      }
    }
  };
  const int begin = task.q_begin, end = task.q_end, K = task.K;
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
    for (int v = 0; v < NV; ++v) store(task.out + i * task.out_row + v * kLanes<A>, acc[i][v]);
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

template <class A>
using TileFunction = void (*)(const TileTask<A>&);

template <class A, int NV, bool Wide>
TileFunction<A> tile_of_height(int height) {
  if constexpr (tallest<A>(NV) >= 12)
    if (height == 12) return &tile<A, 12, NV, Wide>;
  if constexpr (tallest<A>(NV) >= 6)
    if (height == 6) return &tile<A, 6, NV, Wide>;
  switch (height) {
    case 4: return &tile<A, 4, NV, Wide>;
    case 3: return &tile<A, 3, NV, Wide>;
    case 2: return &tile<A, 2, NV, Wide>;
    default: return &tile<A, 1, NV, Wide>;
  }
}

template <class A, bool Wide>
TileFunction<A> tile_of(int height, int nv) {
  if constexpr (kMaxNV<A> >= 4)
    if (nv == 4) return tile_of_height<A, 4, Wide>(height);
  if constexpr (kMaxNV<A> >= 2)
    if (nv == 2) return tile_of_height<A, 2, Wide>(height);
  return tile_of_height<A, 1, Wide>(height);
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

// A stretch of consecutive positions, convolved; what stays the same from tile to tile.
template <class A>
struct Stretch {
  const A* x;              // packed input rows
  int64_t x_first;         // the position of the first of them
  int64_t x_row;           // numbers a row, whole vectors
  int64_t begin, end;      // positions of input rows that exist
  int64_t padding;         // position t reads inputs from t - padding on
  int K;
  const A* w;              // as above, for position `w_first`
  int64_t w_first, w_step; // the weights of a tile at t begin at w + (t - w_first) * w_step
  int64_t wq, wi, wide;
};

constexpr int kFewTaps = 8;
constexpr int64_t kAhead = 4;  // rows between what is asked of the memory and what is used

// Calls with_taps<K>(), K = 1..kFewTaps.
template <int Most = kFewTaps, class Call>
inline void by_taps(int64_t K, Call call) {
  if constexpr (Most > 0) {
    if (K == Most) return call.template operator()<Most>();
    by_taps<Most - 1>(K, call);
  }
}

// Few taps, of inputs that all exist, a position after the other.
template <class A, int K, bool Wide>
void few_taps(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  constexpr int n = kLanes<A>;
  const A* x = s.x + (t - s.padding - s.x_first) * s.x_row;
  for (; t < t_end; ++t, x += s.x_row, out += out_row) {
    const A* from = s.w + (t - s.w_first) * s.w_step;
    A narrow[K];
#pragma GCC unroll 8
    for (int j = 0; !Wide && j < K; ++j) narrow[j] = from[j * s.wq];
    ask_for(x + (K - 1 + kAhead) * s.x_row, t + kAhead < t_end ? vectors * n : 0);
    for (int v = 0; v < vectors * n; v += n) {
      Vec<A> total{};
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        if constexpr (Wide)
          total += load(from + j * s.wq * s.wide + v) * load(x + j * s.x_row + v);
        else
          total += narrow[j] * load(x + j * s.x_row + v);
      }
      store(out + v, total);
    }
  }
}

// Positions t..t_end of it to out, whose rows are out_row apart; `vectors` vectors of channels.
template <class A, bool Wide>
void convolve(const Stretch<A>& s, int64_t t, int64_t t_end, int vectors, A* out, int64_t out_row) {
  const int64_t inner = s.begin + s.padding, inner_end = s.end + s.padding - s.K + 1;  // positions that read no edge
  if (s.K <= kFewTaps && inner < t_end && inner_end > t) {
    const int64_t from = inner > t ? inner : t, to = inner_end < t_end ? inner_end : t_end;
    if (from < to) {
      if (t < from) convolve<A, Wide>(s, t, from, vectors, out, out_row);
      by_taps(s.K, [&]<int K>() { few_taps<A, K, Wide>(s, from, to, vectors, out + (from - t) * out_row, out_row); });
      if (to < t_end) convolve<A, Wide>(s, to, t_end, vectors, out + (to - t) * out_row, out_row);
      return;
    }
  }
  int height = 0;
  for (; t < t_end; t += height, out += height * out_row) {
    for (int v = 0, nv = 0; v < vectors; v += nv) {
      nv = tile_width<A>(vectors - v);
      if (v == 0) height = tile_height<A>(t_end - t, s.K, nv);
      const int64_t first = t - s.padding;  // the input of q = 0
      const int64_t q_begin = s.begin - first, q_end = s.end - first, most = s.K + height - 1;
      const TileTask<A> task{
          s.x + (first - s.x_first) * s.x_row + v * kLanes<A>, s.x_row,
          s.w + (t - s.w_first) * s.w_step + (Wide ? v * kLanes<A> : 0), s.wq, s.wi, s.wide,
          static_cast<int>(q_begin > 0 ? q_begin : 0), static_cast<int>(q_end < most ? q_end : most),
          s.K, out + v * kLanes<A>, out_row};
      tile_of<A, Wide>(height, nv)(task);
    }
  }
}
