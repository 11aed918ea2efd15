// Heads narrower than a vector, where each position has kernels of its own (DynamicConv, DropConnect): lanes are
// channels, and a position's kernels lie tap by tap, one a channel: (K, row).

// Numbers by head, K each, to vectors by tap, and back: n heads are K vectors either way, and each vector of the one
// order is put together from the K of the other.
template <class A>
void make_shuffles(int64_t K, Index<A>* by_tap, Index<A>* by_head) {
  constexpr int n = kLanes<A>;
  for (int64_t to = 0; to < K; ++to) {
    for (int64_t from = 0; from < K; ++from, ++by_tap, ++by_head) {
      for (int l = 0; l < n; ++l) {
        const int64_t tap = l * K + to, head = to * n + l;  // where lane l's number lies in the other order
        (*by_tap)[l] = tap / n == from ? n + tap % n : l;  // n + l: lane l of the vector that is added, l: as it was
        (*by_head)[l] = head % K == from ? n + head / K : l;
      }
    }
  }
}

template <class A, int K>
inline Vec<A> put_together(const Vec<A>* from, const Index<A>* shuffles) {
  Vec<A> v = __builtin_shuffle(from[0], from[0], shuffles[0]);
#pragma GCC unroll 8
  for (int i = 1; i < K; ++i) v = __builtin_shuffle(v, from[i], shuffles[i]);
  return v;
}

// DropConnect's factors at position t, to scratch.factors: four taps of a block of random words.
template <class A>
void factors_by_channel(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t t) {
  constexpr int n = kLanes<A>;
  const uint32_t threshold = least_kept(conv.dropconnect);
  const A kept = 1 / (1 - static_cast<A>(conv.dropconnect));
  const uint64_t first_head = static_cast<uint64_t>(place.number(t) * conv.H);
  for (int64_t v = 0; v < scratch.row; v += n) {
    for (int64_t block = 0; block * 4 < conv.K; ++block) {
      uint32_t words[4][n];
      for (int l = 0; l < n; ++l) {
        const uint64_t head = first_head + static_cast<uint64_t>(place.c + v + l) * conv.H / conv.C;
        words[0][l] = static_cast<uint32_t>(head), words[1][l] = static_cast<uint32_t>(head >> 32);
        words[2][l] = static_cast<uint32_t>(block), words[3][l] = 0;
      }
      philox_lanes<n>(words, conv.seed);
      for (int64_t j = block * 4; j < block * 4 + 4 && j < conv.K; ++j)
        for (int l = 0; l < n; ++l)
          scratch.factors[j * scratch.row + v + l] = words[j % 4][l] >= threshold ? kept : 0;
    }
  }
}

// DynamicConv, a head a channel: the kernels of position t, normalised, to scratch.wide.
template <class A, class S>
void kernels_by_channel(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t t) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, row = scratch.row;
  const S* logits = static_cast<const S*>(conv.weight) + (place.row(t) * conv.H + place.head) * K;
  if (t + kAhead < place.T) ask_for(logits + kAhead * conv.step * conv.H * K, place.heads * K);
  const int64_t whole = place.heads / n * n;
  by_taps(K, [&]<int Taps>() {
    for (int64_t h = 0; h < whole; h += n) {
      Vec<A> from[Taps];
#pragma GCC unroll 8
      for (int i = 0; i < Taps; ++i) from[i] = load_as<A>(logits + h * Taps + i * n);
#pragma GCC unroll 8
      for (int j = 0; j < Taps; ++j) store(scratch.wide + j * row + h, put_together<A, Taps>(from, scratch.by_tap + j * Taps));
    }
  });
  for (int64_t j = 0; whole < row && j < K; ++j)
    for (int64_t h = whole; h < row; ++h) scratch.wide[j * row + h] = h < place.heads ? load(logits[h * K + j]) : 0;
  if (!conv.softmax) return;
  for (A* here = scratch.wide; here < scratch.wide + row; here += n) {
    Vec<A> most = load(here), total{};
    for (int64_t j = 1; j < K; ++j) {
      const Vec<A> next = load(here + j * row);
      most = most > next ? most : next;
    }
    for (int64_t j = 0; j < K; ++j) {
      const Vec<A> e = exp_of(load(here + j * row) - most);
      total += e;
      store(here + j * row, e);
    }
    const Vec<A> scale = 1 / total;
    for (int64_t j = 0; j < K; ++j) store(here + j * row, load(here + j * row) * scale);
  }
}

template <class A, class S>
void lay_out_position(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t t) {
  if (conv.dynamic) kernels_by_channel<A, S>(conv, scratch, place, t);
  if (conv.dropconnect > 0) factors_by_channel(conv, scratch, place, t);
}

// Convolves the unit's packed rows, of which the first is of position `first`, to scratch.out.
template <class A, class S>
void convolve_by_channel(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t first) {
  const int64_t row = scratch.row;
  for (int64_t t = place.t; t < place.t_end; ++t) {
    lay_out_position<A, S>(conv, scratch, place, t);
    const int64_t input = t - conv.padding_l;  // what tap 0 reads
    const int64_t begin = input < 0 ? -input : 0, end = place.T - input < conv.K ? place.T - input : conv.K;
    for (int64_t v = 0; v < row; v += kLanes<A>) {
      const A *x = scratch.x + (input - first) * row + v, *w = scratch.wide + v, *factors = scratch.factors + v;
      Vec<A> total{};
      if (conv.dropconnect > 0)
        for (int64_t j = begin; j < end; ++j) total += load(w + j * row) * load(factors + j * row) * load(x + j * row);
      else
        for (int64_t j = begin; j < end; ++j) total += load(w + j * row) * load(x + j * row);
      store(scratch.out + (t - place.t) * scratch.out_row + v, total);
    }
  }
}

// DynamicConv: the gradients of a position's weights, in scratch.gradients, to those of its logits (H, K).
template <class A, class S>
void finish_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, S* to) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, row = scratch.row, whole = place.heads / n * n;
  for (int64_t v = 0; conv.softmax && v < row; v += n) {
    const A* p = scratch.wide + v;
    A* here = scratch.gradients + v;
    Vec<A> inner{};
    for (int64_t j = 0; j < K; ++j) inner += load(p + j * row) * load(here + j * row);
    for (int64_t j = 0; j < K; ++j) store(here + j * row, load(p + j * row) * (load(here + j * row) - inner));
  }
  by_taps(K, [&]<int Taps>() {
    for (int64_t h = 0; h < whole; h += n) {
      Vec<A> from[Taps];
      A line[n];
#pragma GCC unroll 8
      for (int j = 0; j < Taps; ++j) from[j] = load(scratch.gradients + j * row + h);
#pragma GCC unroll 8
      for (int i = 0; i < Taps; ++i) {
        store(line, put_together<A, Taps>(from, scratch.by_head + i * Taps));
        convert(to + h * Taps + i * n, line, n);
      }
    }
  });
  for (int64_t h = whole; h < place.heads; ++h)
    for (int64_t j = 0; j < K; ++j) store(to[h * K + j], scratch.gradients[j * row + h]);
}

// The gradient of x to scratch.out, and that of the kernels: DynamicConv's to `weight` (T, B, H, K), LightConv's added
// to `partial` (H, K); unless null. The rows of x in scratch.x begin at position `first`, those of the output's gradient
// in scratch.g are g_first..g_last.
template <class A, class S>
void gradients_by_channel(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t first,
                          int64_t g_first, int64_t g_last, A* partial, S* weight) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, R = conv.C / conv.H, row = scratch.row;
  const bool dropped = conv.dropconnect > 0;
  const auto clear = [&] { __builtin_memset(scratch.gradients, 0, K * row * sizeof(A)); };
  __builtin_memset(scratch.out, 0, (place.t_end - place.t) * scratch.out_row * sizeof(A));
  clear();
  for (int64_t t = g_first; t < g_last; ++t) {
    lay_out_position<A, S>(conv, scratch, place, t);
    const bool summed = (partial != nullptr || weight != nullptr) && t >= place.t && t < place.t_end;
    const int64_t input = t - conv.padding_l;  // what tap 0 reads
    const auto taps = [&](int64_t low, int64_t high, auto use) {  // those that read low..high
      const int64_t begin = low > input ? low - input : 0, end = high - input < K ? high - input : K;
      for (int64_t j = begin; j < end; ++j) use(j);
    };
    for (int64_t v = 0; v < row; v += n) {
      const Vec<A> g = load(scratch.g + (t - g_first) * row + v);
      const auto thinned = [&](int64_t j) { return dropped ? g * load(scratch.factors + j * row + v) : g; };
      taps(place.t, place.t_end, [&](int64_t j) {
        A* to = scratch.out + (input + j - place.t) * scratch.out_row + v;
        store(to, load(to) + thinned(j) * load(scratch.wide + j * row + v));
      });
      if (!summed) continue;
      taps(0, place.T, [&](int64_t j) {
        A* to = scratch.gradients + j * row + v;
        store(to, load(to) + thinned(j) * load(scratch.x + (input + j - first) * row + v));
      });
    }
    if (!summed || weight == nullptr) continue;
    finish_gradients(conv, scratch, place, weight + (place.row(t) * conv.H + place.head) * K);
    clear();
  }
  for (int64_t c = 0; partial != nullptr && c < place.channels; ++c)
    for (int64_t j = 0; j < K; ++j) partial[c / R * K + j] += scratch.gradients[j * row + c];
}
