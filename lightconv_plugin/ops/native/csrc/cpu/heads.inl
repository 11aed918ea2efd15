// Lanes are heads: kernels for each position, of few taps and few channels a head. A tensor has the K taps of a head one
// behind another, so that of a vector of heads they are K vectors, which shuffles turn into one for each tap. A head's
// channels are in as many blocks of packed rows. Each tensor is read and written once.

// The kernels of the place's heads at position t, K numbers a head, in whole vectors: where they lie, or copied.
template <class A, class S>
const A* kernel_line(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t t) {
  if (!conv.dynamic) return scratch.shared_kernels;
  const int64_t step = place.row_step * conv.H * conv.K, count = place.heads * conv.K;
  const S* logits = static_cast<const S*>(conv.logits) + (place.row(t) * conv.H + place.head) * conv.K;
  if (t + kAhead < place.T) ask_for(logits + kAhead * step, count);
  if constexpr (std::is_same_v<A, S>)
    if (place.heads % kLanes<A> == 0) return logits;
  convert(scratch.line, logits, count);
  return scratch.line;
}

template <class A, int K>
inline void softmax(Vec<A> (&logits)[K]) {
  Vec<A> most = logits[0], total{};
#pragma GCC unroll 8
  for (int j = 1; j < K; ++j) most = most > logits[j] ? most : logits[j];
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j) logits[j] = exp_of(logits[j] - most), total += logits[j];
  const Vec<A> scale = 1 / total;
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j) logits[j] *= scale;
}

// DropConnect's factors of the heads whose kernels are number, number + 1, ... for random.h.
template <class A, int K>
inline void factors_of_heads(const Conv& conv, uint64_t number, Vec<A> (&factors)[K]) {
  constexpr int n = kLanes<A>, blocks = n < 4 ? 4 : n;
  const uint32_t threshold = least_kept(conv.dropconnect);
  const A kept = 1 / (1 - static_cast<A>(conv.dropconnect));
  for (int first = 0; first < K; first += 4) {
    uint32_t words[4][blocks];
    for (int l = 0; l < blocks; ++l) {
      words[0][l] = static_cast<uint32_t>(number + l), words[1][l] = static_cast<uint32_t>((number + l) >> 32);
      words[2][l] = first / 4, words[3][l] = 0;
    }
    philox_lanes<blocks>(words, conv.seed);
    for (int j = first; j < K && j < first + 4; ++j) {
      A line[n];
      for (int l = 0; l < n; ++l) line[l] = words[j - first][l] >= threshold ? kept : 0;
      factors[j] = load(line);
    }
  }
}

// The kernels of a vector of heads, from K numbers each: normalised, DropConnect's factors (unset without), their product.
template <class A, int K>
inline void kernels_of_heads(const Conv& conv, const A* line, uint64_t number, Vec<A> (&normalized)[K],
                             Vec<A> (&factors)[K], Vec<A> (&kernels)[K]) {
  split<A, K>(line, normalized);
  if (conv.dynamic && conv.softmax) softmax<A, K>(normalized);
  if (conv.dropconnect > 0) factors_of_heads<A, K>(conv, number, factors);
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j) kernels[j] = conv.dropconnect > 0 ? normalized[j] * factors[j] : normalized[j];
}

// The taps begin..end of position t that read one of the inputs first..last: at most positions all.
struct Taps {
  int begin, end;
  bool has(int j) const { return j >= begin && j < end; }
  Taps(const Conv& conv, int64_t t, int64_t first, int64_t last) {
    const int64_t input = t - conv.padding_l;  // which tap 0 reads
    begin = static_cast<int>(first > input ? first - input : 0);
    end = static_cast<int>(last - input < conv.K ? last - input : conv.K);
  }
};

// The result at the place's positions, to a tensor.
template <class A, class S>
void convolve_heads(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const Rows<A>& x,
                    void* tensor) {
  write_results<A, S>(conv, units, scratch, place, tensor, [&](A* out, int64_t out_row) {
    by_taps(conv.K, [&]<int K>() {
      for (int64_t t = place.t; t < place.t_end; ++t, out += out_row) {
        const A* line = kernel_line<A, S>(conv, scratch, place, t);
        const A* inputs = x.at(t - conv.padding_l);
        const Taps taps(conv, t, x.first, x.last);
        const auto convolve = [&]<bool Inner>() {
          for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
            Vec<A> normalized[K], factors[K], kernels[K];
            kernels_of_heads<A, K>(conv, line + h * K, place.number(t) * conv.H + place.head + h, normalized, factors, kernels);
            for (int64_t r = 0; r < place.blocks; ++r) {
              const A* input = inputs + r * x.block + h;
              Vec<A> sum{};
#pragma GCC unroll 8
              for (int j = 0; j < K; ++j)
                if (Inner || taps.has(j)) sum += kernels[j] * load(input + j * x.row);
              store(out + r * scratch.row + h, sum);
            }
          }
        };
        taps.end - taps.begin == K ? convolve.template operator()<true>() : convolve.template operator()<false>();
      }
    });
  });
}

// The gradient at positions gradient.first..last and the inputs x: to that of x, in scratch.result, whose first row is of
// the input gradient.first - padding_l; and to those of the place's kernels: DynamicConv's logits (T, B, H, K) at `weight`,
// or LightConv's kernels, added to `partial` (H, K).
template <class A, class S>
void gradients_of_heads(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& gradient,
                        const Rows<A>& x, bool to_x, bool to_kernels, S* weight, A* partial) {
  const int64_t row = scratch.row, result_row = scratch.result_row, first = gradient.first, last = gradient.last;
  if (to_x) __builtin_memset(scratch.result, 0, (last - first + conv.K - 1) * result_row * sizeof(A));
  if (to_kernels && !conv.dynamic) __builtin_memset(scratch.kernel_gradients, 0, conv.K * row * sizeof(A));
  by_taps(conv.K, [&]<int K>() {
    for (int64_t t = to_x ? first : place.t; t < (to_x ? last : place.t_end); ++t) {
      const bool inside = to_kernels && t >= place.t && t < place.t_end;
      const A* line = kernel_line<A, S>(conv, scratch, place, t);
      const A *gradients = gradient.at(t), *inputs = x.at(t - conv.padding_l);
      A* results = scratch.result + (t - first) * result_row;
      S* logits = inside ? weight + (place.row(t) * conv.H + place.head) * K : nullptr;
      const bool direct = std::is_same_v<A, S> && place.heads % kLanes<A> == 0;
      A* to = direct ? reinterpret_cast<A*>(logits) : scratch.line;  // a head's kernel is read before its gradient is written
      const Taps taps(conv, t, x.first, x.last);
      const auto differentiate = [&]<bool Inner>() {
        for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
          Vec<A> normalized[K], factors[K], kernels[K], sums[K] = {};
          kernels_of_heads<A, K>(conv, line + h * K, place.number(t) * conv.H + place.head + h, normalized, factors, kernels);
          for (int64_t r = 0; r < place.blocks; ++r) {
            const Vec<A> g = load(gradients + r * gradient.block + h);
            A* result = results + r * row + h;
            if (to_x) {
#pragma GCC unroll 8
              for (int j = 0; j < K; ++j) store(result + j * result_row, load(result + j * result_row) + kernels[j] * g);
            }
            if (!inside) continue;
            const A* input = inputs + r * x.block + h;
#pragma GCC unroll 8
            for (int j = 0; j < K; ++j)
              if (Inner || taps.has(j)) sums[j] += g * load(input + j * x.row);
          }
          if (!inside) continue;
          if (conv.dropconnect > 0)
#pragma GCC unroll 8
            for (int j = 0; j < K; ++j) sums[j] *= factors[j];
          if (!conv.dynamic) {
#pragma GCC unroll 8
            for (int j = 0; j < K; ++j) {
              A* total = scratch.kernel_gradients + j * row + h;
              store(total, load(total) + sums[j]);
            }
            continue;
          }
          if (conv.softmax) {
            Vec<A> inner{};
#pragma GCC unroll 8
            for (int j = 0; j < K; ++j) inner += normalized[j] * sums[j];
#pragma GCC unroll 8
            for (int j = 0; j < K; ++j) sums[j] = normalized[j] * (sums[j] - inner);
          }
          join<A, K>(sums, to + h * K);
        }
      };
      taps.end - taps.begin == K ? differentiate.template operator()<true>() : differentiate.template operator()<false>();
      if (inside && conv.dynamic && !direct) convert(logits, scratch.line, place.heads * K);
    }
  });
  if (to_kernels && !conv.dynamic)
    for (int64_t h = 0; h < place.heads; ++h)
      for (int64_t j = 0; j < conv.K; ++j) partial[h * conv.K + j] += scratch.kernel_gradients[j * row + h];
}
