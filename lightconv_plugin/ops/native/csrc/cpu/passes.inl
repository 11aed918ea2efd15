// Forward and backward over units of work.

// Rows begin..end of the unit's channels: a block of rows for each head (wide: one for all), lanes beyond them 0.
template <class A, class S>
void pack(const Conv& conv, const Units& units, const Scratch<A>& scratch, const void* from, const Place& place,
          int64_t begin, int64_t end, A* to) {
  const S* here = static_cast<const S*>(from) + place.row(begin) * conv.C + place.c;
  const int64_t blocks = units.wide ? 1 : place.heads, width = place.channels / blocks;
  for (int64_t s = begin; s < end; ++s, here += conv.step * conv.C, to += scratch.row) {
    if (s + kAhead < end) ask_for(here + kAhead * conv.step * conv.C, place.channels);
    for (int64_t block = 0; block < blocks; ++block) {
      A* row = to + block * scratch.block;
      convert(row, here + block * width, width);
      for (int64_t c = width; c < scratch.row; ++c) row[c] = 0;
    }
  }
}

// The kernels of the unit's heads at positions begin..end: normalised to `kernels`, with DropConnect to `used`.
template <class A, class S>
void make_kernels(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t begin, int64_t end) {
  const int K = static_cast<int>(conv.K), L = static_cast<int>(scratch.taps);
  const int64_t readable = conv.T * conv.B * conv.H * conv.K - L;  // where the last whole row of vectors may begin
  const S* logits = static_cast<const S*>(conv.weight);
  by_vectors<A>(L, [&]<int NV>() {
    for (int64_t t = begin; t < end; ++t) {
      if (conv.dynamic && t + kAhead < end)
        ask_for(logits + (place.row(t + kAhead) * conv.H + place.head) * K, place.heads * K);
      for (int64_t h = 0; h < place.heads; ++h) {
        const int64_t n = place.row(t) * conv.H + place.head + h, at = h * scratch.kernel_block + (t - begin) * L;
        A* to = scratch.kernels + at;
        if (!conv.dynamic) {
          kernel_row<A, A, NV>(scratch.light + h * L, K, L, false, to);
        } else if (n * K <= readable) {
          kernel_row<A, S, NV>(logits + n * K, K, L, conv.softmax, to);
        } else {
          S* row = reinterpret_cast<S*>(scratch.line);
          for (int j = 0; j < K; ++j) row[j] = logits[n * K + j];
          kernel_row<A, S, NV>(row, K, L, conv.softmax, to);
        }
        if (conv.dropconnect > 0) {
          A *factors = scratch.factors + at, *used = scratch.used + at;
          keep_row(conv.seed, static_cast<uint64_t>(place.number(t) * conv.H + place.head + h), conv.dropconnect, L,
                   factors);
          for (int j = 0; j < L; ++j) used[j] = to[j] * factors[j];
        }
      }
    }
  });
}

// LightConv with DropConnect: the unit's kernels in whole vectors.
template <class A>
void lay_out_light(const Conv& conv, const Place& place, const Scratch<A>& scratch) {
  for (int64_t h = 0; h < place.heads; ++h)
    for (int64_t j = 0; j < scratch.taps; ++j)
      scratch.light[h * scratch.taps + j] =
          j < conv.K ? static_cast<const A*>(conv.light)[(place.head + h) * conv.K + j] : 0;
}

template <class A>
void widen(const Conv& conv, const Place& place, const Scratch<A>& scratch) {
  const int64_t R = conv.C / conv.H;
  const A* light = static_cast<const A*>(conv.light) + place.head * conv.K;
  for (int64_t c = 0; c < scratch.row; ++c) {
    const A* kernel = light + (c < place.channels ? c / R : 0) * conv.K;
    for (int64_t j = 0; j < conv.K; ++j) scratch.wide[j * scratch.row + c] = kernel[j];
  }
}

// scratch.out to a tensor (T, B, C), a whole row of the unit's channels at a time.
template <class A, class S>
void unpack(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, void* tensor) {
  const int64_t blocks = units.wide ? 1 : place.heads, width = place.channels / blocks;
  S* to = static_cast<S*>(tensor) + place.row(place.t) * conv.C + place.c;
  const A* out = scratch.out;
  for (int64_t t = place.t; t < place.t_end; ++t, to += conv.step * conv.C, out += scratch.out_row) {
    if (t + kAhead < place.t_end) ask_for<true>(to + kAhead * conv.step * conv.C, place.channels);
    if (width == scratch.row) {
      convert(to, out, place.channels);
    } else {
      for (int64_t block = 0; block < blocks; ++block) convert(to + block * width, out + block * scratch.row, width);
    }
  }
}

// True where the unit's channels are whole vectors in the tensors themselves. Results are written there, and few taps
// read there: to copy them would take longer. Not the last unit of a row, of fewer heads than the others: the width of a
// whole unit is written.
template <class A, class S>
bool in_place(const Conv& conv, const Units& units, const Place& place) {
  const int64_t width = units.wide ? place.channels : conv.C / conv.H;
  const bool whole = !units.wide || place.heads == units.heads;
  return std::is_same_v<A, S> && whole && width % kLanes<A> == 0;
}

// Convolves the unit's rows; results to a tensor (T, B, C).
// `stretch` is that of the first head; from head to head its rows are x_block, its weights w_block numbers apart.
template <class A, class S>
void to_tensor(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, Stretch<A> stretch,
               int64_t x_block, int64_t w_block, void* tensor) {
  const int vectors = static_cast<int>(scratch.row / kLanes<A>);
  const bool packed = !in_place<A, S>(conv, units, place);
  A* out = packed ? scratch.out : static_cast<A*>(tensor) + place.row(place.t) * conv.C + place.c;
  const int64_t out_row = packed ? scratch.out_row : conv.step * conv.C;
  for (int64_t block = 0; block < (units.wide ? 1 : place.heads); ++block) {
    if (units.wide)
      convolve<A, true>(stretch, place.t, place.t_end, vectors, out, out_row);
    else
      convolve<A, false>(stretch, place.t, place.t_end, vectors, out, out_row);
    out += scratch.row, stretch.x += x_block, stretch.w += w_block;
  }
  if (packed) unpack<A, S>(conv, units, scratch, place, tensor);
}

template <class S>
void forward_units(const Conv& conv, const Units& units, void* out, void* memory, int64_t begin, int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, false, Arena(memory));
  const int64_t P = conv.padding_l;
  int64_t widened = -1;
  if (units.by_channel && conv.dynamic) make_shuffles<A>(conv.K, scratch.by_tap, scratch.by_head);
  for (int64_t unit = begin; unit < end; ++unit) {
    Place place(conv, units, unit);
    if (units.wide && !conv.dynamic && widened != place.group) widen(conv, place, scratch), widened = place.group;
    if (units.kernel_rows && !conv.dynamic) lay_out_light(conv, place, scratch);
    for (int64_t b = place.b; b < place.b_end; ++b) {
      place.enter(conv, b);
      const int64_t first = place.t - P > 0 ? place.t - P : 0;
      const int64_t last = place.t_end - P + conv.K - 1 < place.T ? place.t_end - P + conv.K - 1 : place.T;
      const bool packed = units.by_channel || conv.K > kFewTaps || !in_place<A, S>(conv, units, place);
      if (packed) pack<A, S>(conv, units, scratch, conv.x, place, first, last, scratch.x);
      if (units.by_channel) {
        convolve_by_channel<A, S>(conv, scratch, place, first);
        unpack<A, S>(conv, units, scratch, place, out);
        continue;
      }
      const A* x = packed ? scratch.x : static_cast<const A*>(conv.x) + place.row(first) * conv.C + place.c;
      Stretch<A> stretch{x, first, packed ? scratch.row : conv.step * conv.C, first, last, P, static_cast<int>(conv.K),
                         nullptr, 0, 0, 1, -1, scratch.row};
      int64_t w_block = conv.K;
      if (units.kernel_rows) {
        make_kernels<A, S>(conv, scratch, place, place.t, place.t_end);
        stretch.w = scratch.used, stretch.w_first = place.t, stretch.w_step = scratch.taps;
        stretch.wi = scratch.taps - 1, w_block = scratch.kernel_block;
      } else {
        stretch.w = units.wide ? scratch.wide : static_cast<const A*>(conv.light) + place.head * conv.K;
      }
      to_tensor<A, S>(conv, units, scratch, place, stretch, packed ? scratch.block : scratch.row, w_block, out);
    }
  }
}

// LightConv without DropConnect: the gradient of one head's kernel (wide: of all), added to (H, K). g is the gradient
// at position place.t; x the input that it reads with tap 0; of those after it begin..end exist. Rows are `row` apart.
template <class A>
void light_sums(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const A* g,
                const A* x, int64_t row, int64_t begin, int64_t end, A* partial) {
  constexpr int n = kLanes<A>;
  const int K = static_cast<int>(conv.K);
  const int64_t R = conv.C / conv.H, positions = place.t_end - place.t;
  if (!units.wide)
    for (int64_t j = 0; j < K; ++j) store(scratch.line + j * n, Vec<A>{});
  if (K <= kFewTaps) {
    __builtin_memset(scratch.gradients, 0, K * scratch.row * sizeof(A));
    by_taps(K, [&]<int Taps>() {
      few_tap_sums<A, Taps>(g, x, row, positions, begin, end, scratch.row, scratch.gradients);
    });
  }
  for (int64_t v = 0; v < scratch.row; v += n) {
    const auto use = [&](int j, Vec<A> lanes) {
      if (!units.wide) {
        store(scratch.line + j * n, load(scratch.line + j * n) + lanes);
        return;
      }
      for (int l = 0; l < n && v + l < place.channels; ++l) partial[(v + l) / R * K + j] += lanes[l];
    };
    if (K > kFewTaps) each_tap_sum(g + v, x + v, row, positions, begin, end, K, use);
    for (int j = 0; K <= kFewTaps && j < K; ++j) use(j, load(scratch.gradients + j * scratch.row + v));
  }
  if (!units.wide)
    for (int j = 0; j < K; ++j) partial[j] += sum<A>(load(scratch.line + j * n))[0];
}

// A kernel for each position, head `h` of the unit: the gradients of its logits, or, in LightConv, of its weights, to
// scratch.gradients. g is the gradient at position place.t; x holds the inputs first..last; the kernels' rows begin at
// `kernels_first`.
template <class A>
void kernel_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t h, const A* g,
                      const A* x, int64_t first, int64_t last, int64_t kernels_first) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, P = conv.padding_l, origin = place.t - P;  // column 0: what position t reads with tap 0
  const int64_t columns = round_up(place.t_end - place.t + scratch.products, n);
  for (int64_t s = 0; s < columns; s += n) {
    for (int64_t c = 0; c < scratch.row; c += n) {
      Vec<A> square[n];
      for (int i = 0; i < n; ++i) {
        const int64_t input = origin + s + i;
        square[i] = input >= first && input < last ? load(x + (input - first) * scratch.row + c) : Vec<A>{};
      }
      transpose<A>(square);
      for (int i = 0; i < n; ++i) store(scratch.transposed + (c + i) * scratch.columns + s, square[i]);
    }
  }
  const int vectors = static_cast<int>(scratch.products / n), L = static_cast<int>(scratch.taps);
  const int64_t kernels = h * scratch.kernel_block + (place.t - kernels_first) * L;
  const A* factors = conv.dropconnect > 0 ? scratch.factors + kernels : nullptr;
  const A* p = conv.dynamic && conv.softmax ? scratch.kernels + kernels : nullptr;
  by_vectors<A>(L, [&]<int NV>() {
    for (int64_t t = place.t; t < place.t_end; t += kProductRows) {
      const int rows = static_cast<int>(place.t_end - t < kProductRows ? place.t_end - t : kProductRows);
      inner_products(g + (t - place.t) * scratch.row, scratch.row, rows, scratch.transposed + (t - place.t),
                     scratch.columns, conv.C / conv.H, vectors, scratch.product, scratch.products);
      for (int i = 0; i < rows; ++i) {
        const int64_t begin = P - t - i > 0 ? P - t - i : 0, end = place.T + P - t - i < K ? place.T + P - t - i : K;
        const int64_t at = (t + i - place.t) * L;
        gradient_row<A, NV>(scratch.product + i * scratch.products + i, static_cast<int>(begin), static_cast<int>(end),
                            factors == nullptr ? nullptr : factors + at, p == nullptr ? nullptr : p + at, L,
                            scratch.gradients + ((t + i - place.t) * place.heads + h) * L);
      }
    }
  });
}

template <class S>
void backward_units(const Conv& conv, const Units& units, const Gradients& gradients, void* memory, int64_t begin,
                    int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, true, Arena(memory));
  const int64_t K = conv.K, P = conv.padding_l, back = K - 1 - P;  // a gradient's padding
  int64_t widened = -1;
  if (units.by_channel && conv.dynamic) make_shuffles<A>(conv.K, scratch.by_tap, scratch.by_head);
  for (int64_t unit = begin; unit < end; ++unit) {
    Place place(conv, units, unit);
    A* partials = gradients.light_partials == nullptr
                      ? nullptr
                      : static_cast<A*>(gradients.light_partials) + (place.partial * conv.H + place.head) * K;
    if (units.wide && !conv.dynamic && widened != place.group) widen(conv, place, scratch), widened = place.group;
    if (units.kernel_rows && !conv.dynamic) lay_out_light(conv, place, scratch);
    for (int64_t b = place.b; b < place.b_end; ++b) {
      place.enter(conv, b);
      const int64_t first = place.t - P > 0 ? place.t - P : 0;
      const int64_t last = place.t_end - P + K - 1 < place.T ? place.t_end - P + K - 1 : place.T;
      const int64_t g_first = place.t - back > 0 ? place.t - back : 0;
      const int64_t g_last = place.t_end + P < place.T ? place.t_end + P : place.T;
      const bool packed = units.by_channel || units.kernel_rows || K > kFewTaps || !in_place<A, S>(conv, units, place);
      const int64_t row = packed ? scratch.row : conv.step * conv.C, block = packed ? scratch.block : scratch.row;
      const auto rows_of = [&](const void* tensor, int64_t from) {
        return static_cast<const A*>(tensor) + place.row(from) * conv.C + place.c;
      };
      if (packed) pack<A, S>(conv, units, scratch, gradients.out, place, g_first, g_last, scratch.g);
      const A* gs = packed ? scratch.g : rows_of(gradients.out, g_first);
      if (units.by_channel) {
        pack<A, S>(conv, units, scratch, conv.x, place, first, last, scratch.x);
        gradients_by_channel(conv, scratch, place, first, g_first, g_last, partials,
                             static_cast<S*>(gradients.weight));
        if (gradients.x != nullptr) unpack<A, S>(conv, units, scratch, place, gradients.x);
        continue;
      }
      if (units.kernel_rows) make_kernels<A, S>(conv, scratch, place, g_first, g_last);
      if (gradients.x != nullptr) {
        Stretch<A> stretch{gs, g_first, row, g_first, g_last, back, static_cast<int>(K),
                           nullptr, 0, 0, -1, 1, scratch.row};
        int64_t w_block = K;
        if (units.kernel_rows) {
          stretch.w = scratch.used + K - 1, stretch.w_first = back + g_first, stretch.w_step = scratch.taps;
          stretch.wq = scratch.taps - 1, w_block = scratch.kernel_block;
        } else if (units.wide) {
          stretch.w = scratch.wide + (K - 1) * scratch.row;
        } else {
          stretch.w = static_cast<const A*>(conv.light) + place.head * K + K - 1;
        }
        to_tensor<A, S>(conv, units, scratch, place, stretch, block, w_block, gradients.x);
      }
      if (gradients.weight == nullptr && partials == nullptr) continue;
      if (packed) pack<A, S>(conv, units, scratch, conv.x, place, first, last, scratch.x);
      const A* xs = packed ? scratch.x : rows_of(conv.x, first);
      for (int64_t h = 0; h < (units.wide ? 1 : place.heads); ++h) {
        const A *g = gs + h * block + (place.t - g_first) * row, *x = xs + h * block;
        if (!units.kernel_rows) {
          const int64_t origin = place.t - P;
          light_sums(conv, units, scratch, place, g, x + (origin - first) * row, row, first - origin, last - origin,
                     partials + h * K);
          continue;
        }
        kernel_gradients(conv, scratch, place, h, g, x, first, last, g_first);
      }
      if (!units.kernel_rows) continue;
      S* to = static_cast<S*>(gradients.weight) + (place.row(place.t) * conv.H + place.head) * K;
      const A* made = scratch.gradients;
      for (int64_t t = place.t; t < place.t_end; ++t, to += conv.step * conv.H * K) {
        if (conv.dynamic && t + kAhead < place.t_end) ask_for<true>(to + kAhead * conv.step * conv.H * K, place.heads * K);
        for (int64_t h = 0; h < place.heads; ++h, made += scratch.taps) {
          if (conv.dynamic)
            convert(to + h * K, made, K);
          else
            for (int64_t j = 0; j < K; ++j) partials[h * K + j] += made[j];
        }
      }
    }
  }
}
