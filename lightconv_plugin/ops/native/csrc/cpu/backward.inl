// The gradients of kernels, and the backward pass of a unit. The gradient of x is a convolution, see forward.inl.

// ---- Gradients of one kernel for all positions: sums over positions, lanes are channels ----

// sums[j] = sum of g[t] * x[t + j] over t < positions, for j < JT. Of the rows of x, begin..end exist, and the others
// count as 0. Rows have the stride `row`.
template <class A, int JT>
void tap_sums(const A* g, const A* x, int64_t row, int64_t positions, int64_t begin, int64_t end, Vec<A>* sums) {
  constexpr int GT = 4;  // positions whose gradients stay in registers while inputs are read
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

// The same for few taps, GT positions at a time, added to sums (K, width).
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

// ---- Gradients of one kernel per position: inner products over channels, lanes are inputs ----

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

constexpr int kProductVectors = 3;  // largest SV

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

// ---- Gradients of a unit's kernels ----

// LightConv without DropConnect: adds the gradients of the kernels to `partial` (H, K). `gradient` and x are the rows
// of a place.
template <class A>
void shared_gradients(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place,
                      const Rows<A>& gradient, const Rows<A>& x, A* partial) {
  constexpr int n = kLanes<A>;
  const int K = static_cast<int>(conv.K);
  const bool by_channel = units.lanes == Lanes::channels_of_heads;
  const int64_t R = conv.C / conv.H, positions = place.t_end - place.t, row = x.row;
  const int64_t origin = place.t - conv.padding_l, begin = x.first - origin, end = x.last - origin;  // origin: of tap 0
  for (int64_t block = 0; block < place.blocks; ++block, partial += K) {
    const A *g = gradient.at(place.t) + block * gradient.block, *inputs = x.at(origin) + block * x.block;
    if (!by_channel)
      for (int64_t j = 0; j < K; ++j) store(scratch.line + j * n, Vec<A>{});
    if (K <= kFewTaps) {
      __builtin_memset(scratch.kernel_gradients, 0, K * scratch.row * sizeof(A));
      by_taps(K, [&]<int Taps>() {
        few_tap_sums<A, Taps, kFewRows>(g, inputs, row, 0, positions, begin, end, scratch.row, scratch.kernel_gradients);
      });
    }
    for (int64_t v = 0; v < scratch.row; v += n) {
      const auto add = [&](int j, Vec<A> lanes) {
        if (!by_channel) {
          store(scratch.line + j * n, load(scratch.line + j * n) + lanes);
          return;
        }
        for (int l = 0; l < n && v + l < place.channels; ++l) partial[(v + l) / R * K + j] += lanes[l];
      };
      if (K > kFewTaps) each_tap_sum(g + v, inputs + v, row, positions, begin, end, K, add);
      for (int j = 0; K <= kFewTaps && j < K; ++j) add(j, load(scratch.kernel_gradients + j * scratch.row + v));
    }
    if (!by_channel)
      for (int j = 0; j < K; ++j) partial[j] += sum<A>(load(scratch.line + j * n))[0];
  }
}

// One kernel per position and head: writes the gradients of the logits, or of LightConv's weights, of head number h of
// the unit to scratch.kernel_gradients. g is the gradient at position place.t, and x the first input. The kernels in
// scratch start at position `kernels_first`.
template <class A>
void head_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t h, const A* g, const A* x,
                    int64_t kernels_first) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, P = conv.padding_l, origin = place.t - P;  // column 0: input of tap 0 at place.t
  const int64_t columns = round_up(place.t_end - place.t + scratch.product_row, n);
  for (int64_t s = 0; s < columns; s += n) {
    for (int64_t c = 0; c < scratch.row; c += n) {
      Vec<A> square[n];
      for (int i = 0; i < n; ++i) {
        const int64_t input = origin + s + i;
        square[i] = input >= place.first && input < place.last ? load(x + (input - place.first) * scratch.row + c) : Vec<A>{};
      }
      transpose<A>(square);
      for (int i = 0; i < n; ++i) store(scratch.inputs_by_channel + (c + i) * scratch.positions + s, square[i]);
    }
  }
  const int vectors = static_cast<int>(scratch.product_row / n), L = static_cast<int>(scratch.taps);
  const int64_t kernels = h * scratch.kernel_block + (place.t - kernels_first) * L;
  const A* factors = conv.dropconnect > 0 ? scratch.factors + kernels : nullptr;
  const A* normalized = conv.dynamic && conv.softmax ? scratch.kernels + kernels : nullptr;
  by_vectors<A>(L, [&]<int NV>() {
    for (int64_t t = place.t; t < place.t_end; t += kProductRows) {
      const int rows = static_cast<int>(place.t_end - t < kProductRows ? place.t_end - t : kProductRows);
      inner_products(g + (t - place.t) * scratch.row, scratch.row, rows, scratch.inputs_by_channel + (t - place.t),
                     scratch.positions, conv.C / conv.H, vectors, scratch.products, scratch.product_row);
      for (int i = 0; i < rows; ++i) {
        const int64_t input = t + i - P, begin = place.begin > input ? place.begin - input : 0;
        const int64_t end = place.T - input < K ? place.T - input : K;
        const int64_t at = (t + i - place.t) * L;
        gradient_row<A, NV>(scratch.products + i * scratch.product_row + i, static_cast<int>(begin), static_cast<int>(end),
                            factors == nullptr ? nullptr : factors + at, normalized == nullptr ? nullptr : normalized + at,
                            L, scratch.kernel_gradients + ((t + i - place.t) * place.heads + h) * L);
      }
    }
  });
}

// One kernel per position and head: writes the gradients of DynamicConv's logits to a tensor (T, B, H, K), or adds
// those of LightConv's kernels to `partial` (H, K).
template <class A, class S>
void position_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& gradient,
                        const Rows<A>& x, void* tensor, A* partial) {
  const int64_t K = conv.K, step = place.row_step * conv.H * K;
  const A* g = gradient.at(place.t);
  for (int64_t h = 0; h < place.heads; ++h)
    head_gradients(conv, scratch, place, h, g + h * gradient.block, x.data + h * x.block, gradient.first);
  S* logits = static_cast<S*>(tensor) + (place.row(place.t) * conv.H + place.head) * K;
  const A* kernel = scratch.kernel_gradients;
  for (int64_t t = place.t; t < place.t_end; ++t, logits += step) {
    if (conv.dynamic && t + kAhead < place.t_end) ask_for<true>(logits + kAhead * step, place.heads * K);
    for (int64_t h = 0; h < place.heads; ++h, kernel += scratch.taps) {
      if (conv.dynamic)
        convert(logits + h * K, kernel, K);
      else
        for (int64_t j = 0; j < K; ++j) partial[h * K + j] += kernel[j];
    }
  }
}

// ---- Units ----

template <class S>
void backward_units(const Conv& conv, const Units& units, const Gradients& gradients, void* memory, int64_t begin,
                    int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, true, Arena(memory));
  const int64_t padding = conv.K - 1 - conv.padding_l;  // of the convolution of the gradient
  const auto enter = [&](const Place& place) { lay_out_shared(conv, units, place, scratch); };
  each_sentence(conv, units, begin, end, enter, [&](const Place& place) {
    A* partial = static_cast<A*>(gradients.light_partials);
    if (partial != nullptr) partial += (place.partial * conv.H + place.head) * conv.K;
    const int64_t first = place.t - padding > 0 ? place.t - padding : 0;
    const int64_t last = place.t_end + conv.padding_l < place.T ? place.t_end + conv.padding_l : place.T;
    const bool to_state = gradients.state != nullptr && place.t == 0;
    const bool to_kernels = gradients.weight != nullptr || partial != nullptr;
    if (units.lanes == Lanes::heads) {
      differentiate_heads<A, S>(conv, units, scratch, place, gradients.out, first, last, gradients.x != nullptr || to_state,
                                static_cast<S*>(gradients.weight), partial);
      const A* result = scratch.result + (conv.padding_l - first) * scratch.result_row;  // of position 0
      const Place state = place.state(conv);
      if (gradients.x != nullptr)
        unpack<A, S>(conv, units, scratch, place, result + place.t * scratch.result_row, gradients.x);
      if (to_state) unpack<A, S>(conv, units, scratch, state, result + state.t * scratch.result_row, gradients.state);
      return;
    }
    const bool packed = units.by_position || conv.K > kFewTaps || place.first < 0 || !in_place<A, S>(units, place);
    const Rows<A> gradient =
        rows_of<A, S>(conv, units, scratch, place, gradients.out, first, last, packed, scratch.gradient);
    const auto inputs = [&] {
      return rows_of<A, S>(conv, units, scratch, place, conv.x, place.first, place.last, packed, scratch.x);
    };
    if (units.by_position) make_kernels<A, S>(conv, scratch, place, first, last);
    if (gradients.x != nullptr) convolve_unit<A, S>(conv, units, scratch, place, gradient, true, gradients.x);
    if (to_state) convolve_unit<A, S>(conv, units, scratch, place.state(conv), gradient, true, gradients.state);
    if (!to_kernels) return;
    if (units.by_position)
      position_gradients<A, S>(conv, scratch, place, gradient, inputs(), gradients.weight, partial);
    else
      shared_gradients(conv, units, scratch, place, gradient, inputs(), partial);
  });
}
