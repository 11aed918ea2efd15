// Lanes are heads: kernels for each position, of few taps and few channels a head. A tensor has the K taps of a head one
// behind another, so that of a vector of heads they are K vectors, which shuffles turn into one for each tap. A head's
// channels are in as many blocks of packed rows. Each tensor is read and written once.

// ---- Kernels of a vector of heads ----

template <class A, int K>
inline void softmax(Vec<A> (&logits)[K]) {
  Vec<A> most = logits[0], total{};
  for (int j = 1; j < K; ++j) most = most > logits[j] ? most : logits[j];
  for (int j = 0; j < K; ++j) total += logits[j] = exp_of(logits[j] - most);
  const Vec<A> scale = 1 / total;
  for (int j = 0; j < K; ++j) logits[j] *= scale;
}

// DropConnect's factors of the heads whose kernels are number, number + 1, ... for random.h.
template <class A>
[[gnu::noinline]] void factors_of_heads(const Conv& conv, uint64_t number, Vec<A>* factors) {
  constexpr int n = kLanes<A>, blocks = n < 4 ? 4 : n;
  const uint32_t threshold = least_kept(conv.dropconnect);
  const A kept = 1 / (1 - static_cast<A>(conv.dropconnect));
  for (int first = 0; first < conv.K; first += 4) {
    uint32_t words[4][blocks];
    for (int l = 0; l < blocks; ++l) {
      words[0][l] = static_cast<uint32_t>(number + l), words[1][l] = static_cast<uint32_t>((number + l) >> 32);
      words[2][l] = first / 4, words[3][l] = 0;
    }
    philox_lanes<blocks>(words, conv.seed);
    for (int j = first; j < conv.K && j < first + 4; ++j) {
      A line[n];
      for (int l = 0; l < n; ++l) line[l] = words[j - first][l] >= threshold ? kept : 0;
      factors[j] = load(line);
    }
  }
}

// From K numbers a head: normalised, DropConnect's factors, and their product. Plain: the numbers are the kernels.
template <class A, int K, bool Plain>
struct HeadKernels {
  Vec<A> used[K], normalized[K], factors[K];

  HeadKernels(const Conv& conv, const A* line, int64_t number) {
    split<A, K>(line, normalized);
    if (conv.dynamic && conv.softmax) softmax<A, K>(normalized);
    if (conv.dropconnect > 0) factors_of_heads<A>(conv, static_cast<uint64_t>(number), factors);
    for (int j = 0; j < K; ++j) used[j] = conv.dropconnect > 0 ? normalized[j] * factors[j] : normalized[j];
  }

  // The gradients of what was used to those of the numbers.
  void differentiate(const Conv& conv, Vec<A> (&gradients)[K]) const {
    for (int j = 0; conv.dropconnect > 0 && j < K; ++j) gradients[j] *= factors[j];
    if (!conv.dynamic || !conv.softmax) return;
    Vec<A> inner{};
    for (int j = 0; j < K; ++j) inner += normalized[j] * gradients[j];
    for (int j = 0; j < K; ++j) gradients[j] = normalized[j] * (gradients[j] - inner);
  }
};

template <class A, int K>
struct HeadKernels<A, K, true> {
  Vec<A> used[K];

  HeadKernels(const Conv&, const A* line, int64_t) { split<A, K>(line, used); }
};

// ---- One position ----

// The kernels of a place's heads at a position, K numbers a head in whole vectors, and the inputs that they meet: those of
// the taps begin..end exist, which are all but at the ends of a sentence.
template <class A>
struct Position {
  const A* kernels;
  int64_t number;   // of the first head's kernel, for random.h
  const A* inputs;  // tap 0's
  int begin, end;
};

template <class A, class S>
Position<A> position_at(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& x, int64_t t) {
  const int64_t input = t - conv.padding_l, end = x.last - input;  // tap 0's
  Position<A> at{scratch.shared_kernels, place.number(t) * conv.H + place.head, x.at(input),
                 static_cast<int>(x.first > input ? x.first - input : 0),
                 static_cast<int>(end < conv.K ? end : conv.K)};
  if (!conv.dynamic) return at;
  const int64_t count = place.heads * conv.K;
  const S* logits = static_cast<const S*>(conv.logits) + (place.row(t) * conv.H + place.head) * conv.K;
  if (t + kAhead < place.T) ask_for(logits + kAhead * place.row_step * conv.H * conv.K, count);
  if constexpr (std::is_same_v<A, S>) {
    at.kernels = logits;
    if (place.heads % kLanes<A> == 0) return at;
  }
  convert(scratch.line, logits, count);
  at.kernels = scratch.line;
  return at;
}

// The result of a position. Plain: its numbers are the kernels, and all inputs exist.
template <class A, int K, bool Plain>
[[gnu::noinline]] void convolve_position(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& x,
                                         const Position<A>& at, A* out) {
  for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
    const HeadKernels<A, K, Plain> kernels(conv, at.kernels + h * K, at.number + h);
    for (int64_t r = 0; r < place.blocks; ++r) {
      const A* inputs = at.inputs + r * x.block + h;
      Vec<A> sum{};
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j)
        if (Plain || (j >= at.begin && j < at.end)) sum += kernels.used[j] * load(inputs + j * x.row);
      store(out + r * scratch.row + h, sum);
    }
  }
}

// With the gradients of a position's results: adds to the gradients of its inputs, the rows of `input_gradients`, unless
// null; and gives those of its kernels, unless null: of DynamicConv K numbers a head, of LightConv added to (K, row).
template <class A, int K, bool Plain>
[[gnu::noinline]] void differentiate_position(const Conv& conv, const Scratch<A>& scratch, const Place& place,
                                              const Rows<A>& gradient, const Rows<A>& x, const Position<A>& at,
                                              const A* gradients, A* input_gradients, A* kernel_gradients) {
  for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
    const HeadKernels<A, K, Plain> kernels(conv, at.kernels + h * K, at.number + h);
    Vec<A> sums[K];
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) sums[j] = Vec<A>{};
    for (int64_t r = 0; r < place.blocks; ++r) {
      const Vec<A> g = load(gradients + r * gradient.block + h);
      if (input_gradients != nullptr) {
        A* to = input_gradients + r * scratch.row + h;
#pragma GCC unroll 8
        for (int j = 0; j < K; ++j) store(to + j * scratch.result_row, load(to + j * scratch.result_row) + kernels.used[j] * g);
      }
      if (kernel_gradients == nullptr) continue;
      const A* inputs = at.inputs + r * x.block + h;
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j)
        if (Plain || (j >= at.begin && j < at.end)) sums[j] += g * load(inputs + j * x.row);
    }
    if (kernel_gradients == nullptr) continue;
    if constexpr (!Plain) kernels.differentiate(conv, sums);
    if (Plain || conv.dynamic) {
      join<A, K>(sums, kernel_gradients + h * K);
    } else {
      for (int j = 0; j < K; ++j) {
        A* total = kernel_gradients + j * scratch.row + h;
        store(total, load(total) + sums[j]);
      }
    }
  }
}

// Calls call<K, Plain>() for a position.
template <class A, class Call>
inline void by_position(const Conv& conv, const Position<A>& at, Call call) {
  const bool plain = conv.dropconnect == 0 && !(conv.dynamic && conv.softmax);
  by_taps(conv.K, [&]<int K>() {
    plain && at.end - at.begin == K ? call.template operator()<K, true>() : call.template operator()<K, false>();
  });
}

// ---- The positions of a place ----

template <class A, class S>
void convolve_heads(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const Rows<A>& x,
                    void* tensor) {
  write_results<A, S>(conv, units, scratch, place, tensor, [&](A* out, int64_t out_row) {
    for (int64_t t = place.t; t < place.t_end; ++t, out += out_row) {
      const Position<A> at = position_at<A, S>(conv, scratch, place, x, t);
      by_position(conv, at, [&]<int K, bool Plain>() { convolve_position<A, K, Plain>(conv, scratch, place, x, at, out); });
    }
  });
}

// From the gradient at positions gradient.first..last, and the inputs x: that of the inputs from gradient.first - padding_l
// on to scratch.result; and that of the place's kernels, to the logits' (T, B, H, K), or added to LightConv's (H, K).
template <class A, class S>
void differentiate_heads(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& gradient,
                         const Rows<A>& x, bool to_inputs, S* logits, A* light) {
  const int64_t first = gradient.first, last = gradient.last, row = scratch.row;
  if (to_inputs) __builtin_memset(scratch.result, 0, (last - first + conv.K - 1) * scratch.result_row * sizeof(A));
  if (light != nullptr) __builtin_memset(scratch.kernel_gradients, 0, conv.K * row * sizeof(A));
  for (int64_t t = to_inputs ? first : place.t; t < (to_inputs ? last : place.t_end); ++t) {
    const bool inside = t >= place.t && t < place.t_end;
    const Position<A> at = position_at<A, S>(conv, scratch, place, x, t);
    A* input_gradients = to_inputs ? scratch.result + (t - first) * scratch.result_row : nullptr;
    A* kernel_gradients = light != nullptr && inside ? scratch.kernel_gradients : nullptr;
    S* kernels = logits != nullptr && inside ? logits + (place.row(t) * conv.H + place.head) * conv.K : nullptr;
    if (kernels != nullptr) {  // there, or, like the kernels, by way of the line
      kernel_gradients = scratch.line;
      if constexpr (std::is_same_v<A, S>)
        if (place.heads % kLanes<A> == 0) kernel_gradients = kernels;
    }
    by_position(conv, at, [&]<int K, bool Plain>() {
      differentiate_position<A, K, Plain>(conv, scratch, place, gradient, x, at, gradient.at(t), input_gradients,
                                          kernel_gradients);
    });
    if (kernels != nullptr && kernel_gradients == scratch.line) convert(kernels, scratch.line, place.heads * conv.K);
  }
  for (int64_t h = 0; light != nullptr && h < place.heads; ++h)
    for (int64_t j = 0; j < conv.K; ++j) light[h * conv.K + j] += scratch.kernel_gradients[j * row + h];
}
