// LightConv with DropConnect whose heads are narrower than a vector: lanes are channels, and each position's kernel is
// thinned as it is used, by the four taps that a block of random words decides on.

// A vector of a unit's channels, from its channel v on: the heads that they belong to.
template <class A>
struct Channels {
  uint64_t heads[kLanes<A>];

  Channels(const Conv& conv, const Place& place, int64_t v) {
    for (int l = 0; l < kLanes<A>; ++l) heads[l] = static_cast<uint64_t>(place.c + v + l) * conv.H / conv.C;
  }
};

// Calls use(j, factors) for the taps begin..end of position t, sentence b.
template <class A, class Use>
inline void each_thinned_tap(const Conv& conv, const Channels<A>& channels, int64_t b, int64_t t, int64_t begin,
                             int64_t end, Use use) {
  constexpr int n = kLanes<A>;
  const uint32_t threshold = least_kept(conv.dropconnect);
  const A kept = 1 / (1 - static_cast<A>(conv.dropconnect));
  const uint64_t first_head = static_cast<uint64_t>((t * conv.B + b) * conv.H);
  for (int64_t block = begin / 4; block * 4 < end; ++block) {
    uint32_t words[4][n];
    for (int l = 0; l < n; ++l) {
      const uint64_t head = first_head + channels.heads[l];
      words[0][l] = static_cast<uint32_t>(head), words[1][l] = static_cast<uint32_t>(head >> 32);
      words[2][l] = static_cast<uint32_t>(block), words[3][l] = 0;
    }
    philox_lanes<n>(words, conv.seed);
    const int64_t from = block * 4 > begin ? block * 4 : begin, to = block * 4 + 4 < end ? block * 4 + 4 : end;
    for (int64_t j = from; j < to; ++j) {
      A factors[n];
      for (int l = 0; l < n; ++l) factors[l] = words[j % 4][l] >= threshold ? kept : 0;
      use(j, load(factors));
    }
  }
}

// Convolves the unit's packed rows, of which the first is of position `first`, to scratch.out.
template <class A>
void convolve_thinned(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t b, int64_t first) {
  for (int64_t v = 0; v < scratch.row; v += kLanes<A>) {
    const Channels<A> channels(conv, place, v);
    for (int64_t t = place.t; t < place.t_end; ++t) {
      const int64_t input = t - conv.padding_l;  // what tap 0 reads
      const int64_t begin = input < 0 ? -input : 0, end = conv.T - input < conv.K ? conv.T - input : conv.K;
      const A *x = scratch.x + (input - first) * scratch.row + v, *w = scratch.wide + v;
      Vec<A> total{};
      each_thinned_tap<A>(conv, channels, b, t, begin, end, [&](int64_t j, Vec<A> factors) {
        total += load(w + j * scratch.row) * factors * load(x + j * scratch.row);
      });
      store(scratch.out + (t - place.t) * scratch.out_row + v, total);
    }
  }
}

// The gradient of x to scratch.out, and that of the kernels added to `partial` (H, K), unless null. The rows of x in
// scratch.x begin at position `first`, those of the output's gradient in scratch.g are g_first..g_last.
template <class A>
void thinned_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t b, int64_t first,
                       int64_t g_first, int64_t g_last, A* partial) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, R = conv.C / conv.H, row = scratch.row;
  for (int64_t v = 0; v < row; v += n) {
    const Channels<A> channels(conv, place, v);
    A* out = scratch.out + v;
    for (int64_t t = place.t; t < place.t_end; ++t) store(out + (t - place.t) * scratch.out_row, Vec<A>{});
    for (int64_t j = 0; j < K; ++j) store(scratch.line + j * n, Vec<A>{});
    for (int64_t t = g_first; t < g_last; ++t) {
      const bool summed = partial != nullptr && t >= place.t && t < place.t_end;
      const int64_t input = t - conv.padding_l, low = summed ? 0 : place.t, high = summed ? conv.T : place.t_end;
      const int64_t begin = low > input ? low - input : 0, end = high - input < K ? high - input : K;
      const Vec<A> g = load(scratch.g + (t - g_first) * row + v);
      each_thinned_tap<A>(conv, channels, b, t, begin, end, [&](int64_t j, Vec<A> factors) {
        const int64_t s = input + j;
        const Vec<A> thinned = g * factors;
        if (s >= place.t && s < place.t_end) {
          A* to = out + (s - place.t) * scratch.out_row;
          store(to, load(to) + thinned * load(scratch.wide + j * row + v));
        }
        A* sum = scratch.line + j * n;
        if (summed) store(sum, load(sum) + thinned * load(scratch.x + (s - first) * row + v));
      });
    }
    for (int64_t c = v; partial != nullptr && c < v + n && c < place.channels; ++c)
      for (int64_t j = 0; j < K; ++j) partial[c / R * K + j] += scratch.line[j * n + c - v];
  }
}
