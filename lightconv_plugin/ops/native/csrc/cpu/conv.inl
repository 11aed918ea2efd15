// LightConv and DynamicConv over units of work, forward and backward.

// ---- How the work is cut, and the memory that a unit of it takes ----

constexpr int64_t kChunk = 128;     // positions of a unit: long against the K - 1 rows that it shares with its neighbours
constexpr int64_t kChannels = 256;  // channels of a unit: a row that memory gives at full speed; all fits a core's cache
constexpr int64_t kUnits = 64;      // cut finer than that where there are fewer units, for the threads of a large machine

// Memory that a thread keeps from unit to unit, handed out in whole vectors.
class Arena {
 public:
  explicit Arena(void* memory) : next_((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64) {}
  template <class A>
  A* take(int64_t count) {
    A* here = reinterpret_cast<A*>(next_);
    next_ += round_up(count * static_cast<int64_t>(sizeof(A)), 64) + 64;  // a gap: rows of two arrays fall apart
    return here;
  }
  uintptr_t used() const { return next_ + 64; }

 private:
  uintptr_t next_;
};

template <class A>
struct Scratch {
  // numbers of: a packed row of a head (wide: of all heads), a row of kernels, of transposed inputs, of inner products
  int64_t row, taps, columns, products;
  int64_t block;          // numbers of a head's packed rows
  int64_t out_row, kernel_block;
  A *x, *g;               // packed rows: (head, rows, row)
  A* out;                 // (rows, channels); backward, of a state too
  A *kernels, *factors, *used;  // (head, rows, taps): normalised; DropConnect's factors; their product
  A* wide;                // kernels, one a channel: (K, row)
  A* light;               // LightConv's with DropConnect: (head, taps)
  A *transposed, *product, *line;
  A* gradients;           // of kernels: (rows, head, taps), or, one a channel, (K, row)
  uintptr_t end;

  Scratch(const Conv& conv, const Units& units, bool backward, Arena arena) {
    constexpr int n = kLanes<A>;
    const int64_t seen = units.rows + conv.K - 1, before = conv.state != nullptr ? conv.K - 1 : 0;
    const int64_t rows = seen < before + conv.T ? seen : before + conv.T;  // those outside are not packed
    const int64_t R = conv.C / conv.H, blocks = units.wide ? 1 : units.heads;
    row = round_up(units.wide ? units.heads * R : R, n), taps = round_up(conv.K, n);
    products = round_up(conv.K + kProductRows - 1, n);
    columns = round_up(units.rows + products + n, n);
    block = rows * row, kernel_block = rows * taps, out_row = blocks * row;
    x = arena.take<A>(blocks * block);
    out = arena.take<A>((units.rows + (backward ? before : 0)) * out_row);
    line = arena.take<A>(taps * n);
    g = kernels = factors = used = wide = light = transposed = product = gradients = nullptr;
    if (units.wide) wide = arena.take<A>(conv.K * row);
    if (units.kernel_rows) {
      kernels = used = arena.take<A>(blocks * kernel_block), light = arena.take<A>(blocks * taps);
      if (conv.dropconnect > 0)
        factors = arena.take<A>(blocks * kernel_block), used = arena.take<A>(blocks * kernel_block);
    }
    if (backward) {
      g = arena.take<A>(blocks * block);
      if (units.kernel_rows) {
        transposed = arena.take<A>(row * columns);
        product = arena.take<A>(kProductRows * products + n);  // rows are read from any number on
        gradients = arena.take<A>(units.rows * units.heads * taps);
      } else {
        gradients = arena.take<A>(conv.K * row);
      }
    }
    end = arena.used();
  }
};

template <class A>
Units units_of(const Conv& conv, bool backward) {
  Units units{};
  const int64_t R = conv.C / conv.H;
  units.kernel_rows = conv.dynamic || conv.dropconnect > 0;
  units.wide = !units.kernel_rows && R < kLanes<A>;
  units.heads = kChannels / R < 1 ? 1 : kChannels / R < conv.H ? kChannels / R : conv.H;
  int64_t chunk = kChunk;
  for (;; chunk /= 2) {
    units.chunks = (conv.T + chunk - 1) / chunk;
    units.rows = conv.offsets != nullptr ? chunk : (conv.T + units.chunks - 1) / units.chunks;
    units.sentences = units.rows >= chunk ? 1 : chunk / units.rows;
    units.batches = (conv.B + units.sentences - 1) / units.sentences;
    units.partials = units.chunks * units.batches;
    for (;; units.heads = (units.heads + 1) / 2) {
      units.groups = (conv.H + units.heads - 1) / units.heads;
      units.count = units.groups * units.partials;
      if (units.count >= kUnits || units.heads * R <= kChannels / 4 || units.heads == 1) break;
    }
    if (units.count >= kUnits || chunk <= 32) break;
  }
  units.scratch = Scratch<A>(conv, units, backward, Arena(nullptr)).end;
  return units;
}

// Where a unit lies. Wide groups stay outermost, so that their kernels are laid out once.
struct Place {
  int64_t group, partial, b, b_end, t, rows, head, heads, c, channels;
  int64_t begin;  // the first position of an input: 0, or that of a state
  // of the sentence that `enter` was last called with: its length, the end of the unit's positions and the inputs that
  // these read; the row and the number for random.h of its position 0, and the step from row to row and number to number
  int64_t sentence, T, t_end, first, last, row_0, number_0, row_step, number_step;

  Place(const Conv& conv, const Units& units, int64_t unit) {
    group = units.wide ? unit / units.partials : unit % units.groups;
    partial = units.wide ? unit % units.partials : unit / units.groups;
    if (units.pieces != nullptr) {
      const Piece& piece = units.pieces[partial];
      b = piece.b, b_end = piece.b_end, t = piece.t, rows = piece.rows;
    } else {
      b = partial % units.batches * units.sentences;
      b_end = b + units.sentences < conv.B ? b + units.sentences : conv.B;
      t = partial / units.batches * units.rows, rows = units.rows;
    }
    row_step = conv.step, number_step = conv.B, begin = conv.state != nullptr ? -conv.padding_l : 0;
    head = group * units.heads;
    heads = head + units.heads < conv.H ? units.heads : conv.H - head;
    c = head * (conv.C / conv.H), channels = heads * (conv.C / conv.H);
  }

  void enter(const Conv& conv, int64_t b) {
    const bool packed = conv.offsets != nullptr;
    sentence = b, row_0 = packed ? conv.offsets[b] : b * conv.sentence, number_0 = packed ? row_0 : b;
    T = packed ? conv.offsets[b + 1] - row_0 : conv.T;
    narrow(conv, t, t + rows < T ? t + rows : T);
  }
  // To the positions from..to of the sentence.
  void narrow(const Conv& conv, int64_t from, int64_t to) {
    t = from, t_end = to, first = t - conv.padding_l > begin ? t - conv.padding_l : begin;
    last = t_end - conv.padding_l + conv.K - 1 < T ? t_end - conv.padding_l + conv.K - 1 : T;
  }
  // The sentence's state, as rows of the state or of its gradient.
  Place before(const Conv& conv) const {
    Place place = *this;
    place.t = begin, place.t_end = 0, place.row_step = conv.state_step;
    place.row_0 = sentence * conv.state_sentence - begin * conv.state_step;
    return place;
  }
  int64_t row(int64_t t) const { return row_0 + t * row_step; }
  int64_t number(int64_t t) const { return number_0 + t * number_step; }  // the same in every layout
};

// ---- Rows and kernels between tensors and scratch ----

// Rows begin..end of the unit's channels: a block of rows for each head (wide: one for all), lanes beyond them 0.
template <class A, class S>
void pack(const Conv& conv, const Units& units, const Scratch<A>& scratch, const void* from, const Place& place,
          int64_t begin, int64_t end, A* to) {
  const S* here = static_cast<const S*>(from) + place.row(begin) * conv.C + place.c;
  const int64_t blocks = units.wide ? 1 : place.heads, width = place.channels / blocks;
  const int64_t step = place.row_step * conv.C;
  for (int64_t s = begin; s < end; ++s, here += step, to += scratch.row) {
    if (s + kAhead < end) ask_for(here + kAhead * step, place.channels);
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
  const S* logits = static_cast<const S*>(conv.logits);
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
  const A* out = scratch.out;
  const int64_t blocks = units.wide ? 1 : place.heads, width = place.channels / blocks;
  S* to = static_cast<S*>(tensor) + place.row(place.t) * conv.C + place.c;
  const int64_t step = place.row_step * conv.C;
  for (int64_t t = place.t; t < place.t_end; ++t, to += step, out += scratch.out_row) {
    if (t + kAhead < place.t_end) ask_for<true>(to + kAhead * step, place.channels);
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

// ---- Gradients of kernels ----

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
      few_tap_sums<A, Taps, kFewRows>(g, x, row, 0, positions, begin, end, scratch.row, scratch.gradients);
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
// scratch.gradients. g is the gradient at position place.t, x the first input; the kernels' rows begin at `kernels_first`.
template <class A>
void kernel_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t h, const A* g,
                      const A* x, int64_t kernels_first) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, P = conv.padding_l, origin = place.t - P;  // column 0: what position t reads with tap 0
  const int64_t columns = round_up(place.t_end - place.t + scratch.products, n);
  for (int64_t s = 0; s < columns; s += n) {
    for (int64_t c = 0; c < scratch.row; c += n) {
      Vec<A> square[n];
      for (int i = 0; i < n; ++i) {
        const int64_t input = origin + s + i;
        square[i] = input >= place.first && input < place.last ? load(x + (input - place.first) * scratch.row + c) : Vec<A>{};
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
        const int64_t input = t + i - P, begin = place.begin > input ? place.begin - input : 0;
        const int64_t end = place.T - input < K ? place.T - input : K;
        const int64_t at = (t + i - place.t) * L;
        gradient_row<A, NV>(scratch.product + i * scratch.products + i, static_cast<int>(begin), static_cast<int>(end),
                            factors == nullptr ? nullptr : factors + at, p == nullptr ? nullptr : p + at, L,
                            scratch.gradients + ((t + i - place.t) * place.heads + h) * L);
      }
    }
  });
}

// ---- Forward and backward ----

// Runs act(place) on each sentence of each unit, whose kernels are laid out where all positions have the same. Of few
// taps, positions that read a state come first, so that the others' inputs are used where they lie.
template <class A, class Do>
void each_sentence(const Conv& conv, const Units& units, const Scratch<A>& scratch, int64_t begin, int64_t end, Do act) {
  int64_t widened = -1;
  for (int64_t unit = begin; unit < end; ++unit) {
    Place place(conv, units, unit);
    if (units.wide && widened != place.group) widen(conv, place, scratch), widened = place.group;
    if (units.kernel_rows && !conv.dynamic) lay_out_light(conv, place, scratch);
    const bool apart = conv.state != nullptr && place.t == 0 && conv.K <= kFewTaps;
    for (int64_t b = place.b; b < place.b_end; ++b) {
      place.enter(conv, b);
      if (!apart || place.t_end < conv.K) {
        act(place);
        continue;
      }
      Place part = place;
      for (const int64_t end : {conv.padding_l, place.t_end}) part.narrow(conv, part.t, end), act(part), part.t = end;
    }
  }
}

// Rows of x, or of the gradient: those of the tensor itself, or packed in scratch.
template <class A>
struct Rows {
  const A* at;  // position `first`
  int64_t first, last, row, block;  // from position to position, from head to head
};

// Convolves the unit's rows with its kernels; turned round (`flip`), the gradient's. Results to a tensor (T, B, C).
template <class A, class S>
void convolve_unit(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place,
                   const Rows<A>& rows, bool flip, void* tensor) {
  const int64_t K = conv.K, padding = flip ? K - 1 - conv.padding_l : conv.padding_l;
  const int64_t taps = scratch.taps, from_end = flip ? K - 1 : 0;
  Stretch<A> stretch{rows.at,     rows.first, rows.row, rows.first, rows.last, padding, static_cast<int>(K),
                     nullptr, 0, 0, flip ? -1 : 1, flip ? 1 : -1, scratch.row};
  if (units.kernel_rows) {
    stretch.w = scratch.used + from_end, stretch.w_first = flip ? padding + rows.first : place.t, stretch.w_step = taps;
    (flip ? stretch.wq : stretch.wi) = taps - 1;
  } else if (units.wide) {
    stretch.w = scratch.wide + from_end * scratch.row;
  } else {
    stretch.w = static_cast<const A*>(conv.light) + place.head * K + from_end;
  }
  const int vectors = static_cast<int>(scratch.row / kLanes<A>);
  const bool packed = !in_place<A, S>(conv, units, place);
  A* out = packed ? scratch.out : static_cast<A*>(tensor) + place.row(place.t) * conv.C + place.c;
  const int64_t out_row = packed ? scratch.out_row : place.row_step * conv.C;
  for (int64_t block = 0; block < (units.wide ? 1 : place.heads); ++block) {
    if (units.wide)
      convolve<A, true>(stretch, place.t, place.t_end, vectors, out, out_row);
    else
      convolve<A, false>(stretch, place.t, place.t_end, vectors, out, out_row);
    out += scratch.row, stretch.x += rows.block, stretch.w += units.kernel_rows ? scratch.kernel_block : K;
  }
  if (packed) unpack<A, S>(conv, units, scratch, place, tensor);
}

template <class A, class S>
Rows<A> rows_of(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const void* tensor,
                int64_t first, int64_t last, bool packed, A* room) {
  if (!packed)
    return {static_cast<const A*>(tensor) + place.row(first) * conv.C + place.c, first, last, conv.step * conv.C,
            scratch.row};
  const int64_t own = first > 0 ? first : 0;
  pack<A, S>(conv, units, scratch, conv.state, place.before(conv), first, own, room);
  pack<A, S>(conv, units, scratch, tensor, place, own, last, room + (own - first) * scratch.row);
  return {room, first, last, scratch.row, scratch.block};
}

template <class S>
void forward_units(const Conv& conv, const Units& units, void* out, void* memory, int64_t begin, int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, false, Arena(memory));
  each_sentence<A>(conv, units, scratch, begin, end, [&](const Place& place) {
    const bool packed = conv.K > kFewTaps || place.first < 0 || !in_place<A, S>(conv, units, place);
    const Rows<A> x = rows_of<A, S>(conv, units, scratch, place, conv.x, place.first, place.last, packed, scratch.x);
    if (units.kernel_rows) make_kernels<A, S>(conv, scratch, place, place.t, place.t_end);
    convolve_unit<A, S>(conv, units, scratch, place, x, false, out);
  });
}

template <class S>
void backward_units(const Conv& conv, const Units& units, const Gradients& gradients, void* memory, int64_t begin,
                    int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, true, Arena(memory));
  const int64_t K = conv.K, back = K - 1 - conv.padding_l;  // a gradient's padding
  each_sentence<A>(conv, units, scratch, begin, end, [&](const Place& place) {
    A* partials = static_cast<A*>(gradients.light_partials);
    if (partials != nullptr) partials += (place.partial * conv.H + place.head) * K;
    const int64_t g_first = place.t - back > 0 ? place.t - back : 0;
    const int64_t g_last = place.t_end + conv.padding_l < place.T ? place.t_end + conv.padding_l : place.T;
    const bool packed =
        units.kernel_rows || K > kFewTaps || place.first < 0 || !in_place<A, S>(conv, units, place);
    const bool to_state = gradients.state != nullptr && place.t == 0;
    const Rows<A> g = rows_of<A, S>(conv, units, scratch, place, gradients.out, g_first, g_last, packed, scratch.g);
    if (units.kernel_rows) make_kernels<A, S>(conv, scratch, place, g_first, g_last);
    if (gradients.x != nullptr) convolve_unit<A, S>(conv, units, scratch, place, g, true, gradients.x);
    if (to_state) convolve_unit<A, S>(conv, units, scratch, place.before(conv), g, true, gradients.state);
    if (gradients.weight == nullptr && partials == nullptr) return;
    const Rows<A> x = rows_of<A, S>(conv, units, scratch, place, conv.x, place.first, place.last, packed, scratch.x);
    const A* own_g = g.at + (place.t - g_first) * g.row;
    if (!units.kernel_rows) {
      const int64_t origin = place.t - conv.padding_l;  // what tap 0 reads
      for (int64_t h = 0; h < (units.wide ? 1 : place.heads); ++h)
        light_sums(conv, units, scratch, place, own_g + h * g.block, x.at + h * x.block + (origin - x.first) * x.row,
                   x.row, x.first - origin, x.last - origin, partials + h * K);
      return;
    }
    for (int64_t h = 0; h < place.heads; ++h)
      kernel_gradients(conv, scratch, place, h, own_g + h * g.block, x.at + h * x.block, g_first);
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
  });
}
