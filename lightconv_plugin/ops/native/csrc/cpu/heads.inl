// Lanes are heads: one kernel per position and head, few taps, few channels per head. A tensor stores the K taps of a
// head side by side, so a vector of heads has its kernels in K vectors; shuffles turn these into one vector per tap.
// Each channel of the heads has its own block of packed rows.
//
// The common case reads and writes the tensors in place, at the speed of memory: runs of positions that have all their
// inputs, one channel per head, kernels without softmax and DropConnect. All other cases are computed position by
// position, in packed rows.

// ---- Runs ----

// Consecutive positions, in whole vectors of heads. `kernels` points to the kernel of the first position, and x to the
// input that this position reads with tap 0. `row` and `kernel_row` are the strides from position to position, in
// numbers.
template <class S>
struct Run {
  int64_t heads, positions, row, kernel_row;
  const S *kernels, *x;
};

constexpr int64_t kRun = kAhead;  // positions per vector of heads; meanwhile the inputs stay in registers

template <class A, class S, int K>
[[gnu::noinline]] void convolve_run(const Run<S>& run, S* out) {
  const int64_t row = run.row;
  for (int64_t h = 0; h < run.heads; h += kLanes<A>) {
    Vec<A> inputs[K], kernels[K];
#pragma GCC unroll 8
    for (int j = 0; j < K - 1; ++j) inputs[j] = load_as<A>(run.x + j * row + h);
    for (int64_t t = 0; t < run.positions; ++t) {
      inputs[K - 1] = load_as<A>(run.x + (t + K - 1) * row + h);
      const S* numbers = run.kernels + t * run.kernel_row + h * K;
      ask_for(numbers + kAhead * run.kernel_row, kLanes<A> * K);
      ask_for(run.x + (t + K - 1 + kAhead) * row + h, 1);
      split<A, K>(numbers, kernels);
      Vec<A> sum{};
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) sum += kernels[j] * inputs[j];
      store_as<A>(out + t * row + h, sum);
#pragma GCC unroll 8
      for (int j = 0; j < K - 1; ++j) inputs[j] = inputs[j + 1];
    }
  }
}

// Adds to the gradients of the inputs (positions + K - 1, input_row), whose first row is the input of tap 0 at the
// first position. Rows from K - 1 on must be 0 before. Writes the gradients of the kernels. Both pointers may be null.
template <class A, class S, int K>
[[gnu::noinline]] void differentiate_run(const Run<S>& run, const S* gradient, A* input_gradients, int64_t input_row,
                                         S* kernel_gradients) {
  const int64_t row = run.row;
  for (int64_t h = 0; h < run.heads; h += kLanes<A>) {
    Vec<A> inputs[K], kernels[K], sums[K], products[K];
#pragma GCC unroll 8
    for (int j = 0; j < K - 1; ++j) {
      inputs[j] = kernel_gradients != nullptr ? load_as<A>(run.x + j * row + h) : Vec<A>{};
      sums[j] = input_gradients != nullptr ? load(input_gradients + j * input_row + h) : Vec<A>{};
    }
    for (int64_t t = 0; t < run.positions; ++t) {
      const Vec<A> g = load_as<A>(gradient + t * row + h);
      ask_for(gradient + (t + kAhead) * row + h, 1);
      if (input_gradients != nullptr) {
        const S* numbers = run.kernels + t * run.kernel_row + h * K;
        ask_for(numbers + kAhead * run.kernel_row, kLanes<A> * K);
        split<A, K>(numbers, kernels);
        sums[K - 1] = Vec<A>{};
#pragma GCC unroll 8
        for (int j = 0; j < K; ++j) sums[j] += kernels[j] * g;
        store(input_gradients + t * input_row + h, sums[0]);
#pragma GCC unroll 8
        for (int j = 0; j < K - 1; ++j) sums[j] = sums[j + 1];
      }
      if (kernel_gradients != nullptr) {
        inputs[K - 1] = load_as<A>(run.x + (t + K - 1) * row + h);
        ask_for(run.x + (t + K - 1 + kAhead) * row + h, 1);
#pragma GCC unroll 8
        for (int j = 0; j < K; ++j) products[j] = g * inputs[j];
        join<A, K>(products, kernel_gradients + t * run.kernel_row + h * K);
#pragma GCC unroll 8
        for (int j = 0; j < K - 1; ++j) inputs[j] = inputs[j + 1];
      }
    }
    if (input_gradients == nullptr) continue;
#pragma GCC unroll 8
    for (int j = 0; j < K - 1; ++j) store(input_gradients + (run.positions + j) * input_row + h, sums[j]);
  }
}

// ---- Position by position ----

template <class A, int K>
inline void softmax(Vec<A> (&logits)[K]) {
  Vec<A> most = logits[0], total{};
  for (int j = 1; j < K; ++j) most = most > logits[j] ? most : logits[j];
  for (int j = 0; j < K; ++j) total += logits[j] = exp_of(logits[j] - most);
  const Vec<A> scale = 1 / total;
  for (int j = 0; j < K; ++j) logits[j] *= scale;
}

// Writes DropConnect's factors of a vector of heads. In random.h, the first head's kernel has the index n = number, the
// next number + 1, and so on.
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

// One position: the kernels of a place's heads, K numbers per head, readable in whole vectors, and the inputs of the
// taps. Only the inputs of the taps begin..end exist; those are all K except at the ends of a sentence.
template <class A>
struct Position {
  const A* kernels;
  int64_t number;   // index n of the first head's kernel in random.h
  const A* inputs;  // of tap 0 on
  int begin, end;
  bool has(int tap) const { return tap >= begin && tap < end; }
};

template <class A, class S>
Position<A> position_at(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& x, int64_t t) {
  const int64_t input = t - conv.padding_l, end = x.last - input;  // input: of tap 0
  const int64_t number = place.number(t) * conv.H + place.head;
  if (conv.dynamic)
    convert(scratch.line, static_cast<const S*>(conv.logits) + (place.row(t) * conv.H + place.head) * conv.K,
            place.heads * conv.K);
  return {conv.dynamic ? scratch.line : scratch.shared_kernels, number, x.at(input),
          static_cast<int>(x.first > input ? x.first - input : 0), static_cast<int>(end < conv.K ? end : conv.K)};
}

// The kernels of a vector of heads: normalised, DropConnect's factors, and their product.
template <class A, int K>
struct HeadKernels {
  Vec<A> used[K], normalized[K], factors[K];

  HeadKernels(const Conv& conv, const A* numbers, int64_t number) {
    split<A, K>(numbers, normalized);
    if (conv.dynamic && conv.softmax) softmax<A, K>(normalized);
    if (conv.dropconnect > 0) factors_of_heads<A>(conv, static_cast<uint64_t>(number), factors);
    for (int j = 0; j < K; ++j) used[j] = conv.dropconnect > 0 ? normalized[j] * factors[j] : normalized[j];
  }

  // Turns gradients of `used` into gradients of the constructor's `numbers`.
  void differentiate(const Conv& conv, Vec<A> (&gradients)[K]) const {
    for (int j = 0; conv.dropconnect > 0 && j < K; ++j) gradients[j] *= factors[j];
    if (!conv.dynamic || !conv.softmax) return;
    Vec<A> inner{};
    for (int j = 0; j < K; ++j) inner += normalized[j] * gradients[j];
    for (int j = 0; j < K; ++j) gradients[j] = normalized[j] * (gradients[j] - inner);
  }
};

template <class A, int K>
[[gnu::noinline]] void convolve_position(const Conv& conv, const Scratch<A>& scratch, const Place& place, const Rows<A>& x,
                                         const Position<A>& at, A* out) {
  for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
    const HeadKernels<A, K> kernels(conv, at.kernels + h * K, at.number + h);
    for (int64_t r = 0; r < place.blocks; ++r) {
      const A* inputs = at.inputs + r * x.block + h;
      Vec<A> sum{};
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j)
        if (at.has(j)) sum += kernels.used[j] * load(inputs + j * x.row);
      store(out + r * scratch.row + h, sum);
    }
  }
}

// As differentiate_run, for one position. LightConv's gradients of the kernels are added to kernel_gradients (K, row).
// DynamicConv's overwrite the kernels at.kernels, in the same layout.
template <class A, int K>
[[gnu::noinline]] void differentiate_position(const Conv& conv, const Scratch<A>& scratch, const Place& place,
                                              const Rows<A>& gradient, const Rows<A>& x, const Position<A>& at,
                                              const A* gradients, A* input_gradients, A* kernel_gradients) {
  for (int64_t h = 0; h < place.heads; h += kLanes<A>) {
    const HeadKernels<A, K> kernels(conv, at.kernels + h * K, at.number + h);
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
        if (at.has(j)) sums[j] += g * load(inputs + j * x.row);
    }
    if (kernel_gradients == nullptr) continue;
    kernels.differentiate(conv, sums);
    if (conv.dynamic) {
      join<A, K>(sums, kernel_gradients + h * K);
    } else {
      for (int j = 0; j < K; ++j) {
        A* total = kernel_gradients + j * scratch.row + h;
        store(total, load(total) + sums[j]);
      }
    }
  }
}

// ---- The positions of a place ----

// Returns true if runs can be used, at positions that have all their inputs.
template <class A>
bool runs(const Conv& conv, const Place& place) {
  return conv.dynamic && !conv.softmax && conv.dropconnect == 0 && place.blocks == 1 && place.heads % kLanes<A> == 0;
}

// Calls act(stretch, inner) on consecutive stretches of a place. `inner` stretches have all their inputs in the tensor.
template <class Act>
void each_stretch(const Conv& conv, const Place& place, Act act) {
  const int64_t inner = place.t > conv.padding_l ? place.t : conv.padding_l;
  const int64_t inner_end = place.T - (conv.K - 1 - conv.padding_l);
  const int64_t middle = inner < place.t_end ? inner : place.t_end;
  const int64_t middle_end = inner_end > middle ? (inner_end < place.t_end ? inner_end : place.t_end) : middle;
  Place stretch = place;
  const auto until = [&](int64_t end, bool is_inner) {
    if (stretch.t < end) stretch.narrow(conv, stretch.t, end), act(stretch, is_inner), stretch.t = end;
  };
  until(middle, false), until(middle_end, true), until(place.t_end, false);
}

template <class A, class S>
Run<S> run_at(const Conv& conv, const Place& place, int64_t t, int64_t end) {
  const int64_t kernel_row = place.row_step * conv.H * conv.K;
  return {place.heads, end - t < kRun ? end - t : kRun, place.row_step * conv.C, kernel_row,
          static_cast<const S*>(conv.logits) + (place.row(t) * conv.H + place.head) * conv.K,
          static_cast<const S*>(conv.x) + place.row(t - conv.padding_l) * conv.C + place.channel};
}

template <class A, class S>
void convolve_heads(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, void* tensor) {
  const bool in_runs = runs<A>(conv, place);
  each_stretch(conv, place, [&](const Place& stretch, bool inner) {
    if (inner && in_runs) {
      S* out = static_cast<S*>(tensor) + place.channel;
      for (int64_t t = stretch.t; t < stretch.t_end; t += kRun) {
        const Run<S> run = run_at<A, S>(conv, place, t, stretch.t_end);
        by_taps(conv.K, [&]<int K>() { convolve_run<A, S, K>(run, out + place.row(t) * conv.C); });
      }
      return;
    }
    const Rows<A> x = rows_of<A, S>(conv, units, scratch, stretch, conv.x, stretch.first, stretch.last, true, scratch.x);
    A* out = scratch.result;
    for (int64_t t = stretch.t; t < stretch.t_end; ++t, out += scratch.result_row) {
      const Position<A> at = position_at<A, S>(conv, scratch, stretch, x, t);
      by_taps(conv.K, [&]<int K>() { convolve_position<A, K>(conv, scratch, stretch, x, at, out); });
    }
    unpack<A, S>(conv, units, scratch, stretch, scratch.result, tensor);
  });
}

// Computes gradients from the gradient of the result at positions first..last. Those of the place's kernels are written
// to the gradient of the logits (T, B, H, K), or added to LightConv's `light` (H, K). If to_inputs, those of the inputs
// from first - padding_l on are written to scratch.result.
template <class A, class S>
void differentiate_heads(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place,
                         const void* gradient, int64_t first, int64_t last, bool to_inputs, S* logits, A* light) {
  const bool in_runs = runs<A>(conv, place);
  if (to_inputs) __builtin_memset(scratch.result, 0, (last - first + conv.K - 1) * scratch.result_row * sizeof(A));
  if (light != nullptr) __builtin_memset(scratch.kernel_gradients, 0, conv.K * scratch.row * sizeof(A));
  const auto results = [&](int64_t t) { return to_inputs ? scratch.result + (t - first) * scratch.result_row : nullptr; };
  const auto logits_at = [&](int64_t t) { return logits + (place.row(t) * conv.H + place.head) * conv.K; };
  const auto differentiate = [&](const Place& stretch, bool in_run, bool inside) {
    const bool to_logits = inside && logits != nullptr, to_kernels = to_logits || (inside && light != nullptr);
    if (in_run) {
      const S* gradients = static_cast<const S*>(gradient) + place.channel;
      for (int64_t t = stretch.t; t < stretch.t_end; t += kRun) {
        const Run<S> run = run_at<A, S>(conv, place, t, stretch.t_end);
        by_taps(conv.K, [&]<int K>() {
          differentiate_run<A, S, K>(run, gradients + place.row(t) * conv.C, results(t), scratch.result_row,
                                     to_logits ? logits_at(t) : nullptr);
        });
      }
      return;
    }
    const Rows<A> g = rows_of<A, S>(conv, units, scratch, stretch, gradient, stretch.t, stretch.t_end, true, scratch.gradient);
    Rows<A> x{scratch.x, stretch.first, stretch.last, scratch.row, scratch.block};
    if (to_kernels)
      x = rows_of<A, S>(conv, units, scratch, stretch, conv.x, stretch.first, stretch.last, true, scratch.x);
    for (int64_t t = stretch.t; t < stretch.t_end; ++t) {
      const Position<A> at = position_at<A, S>(conv, scratch, stretch, x, t);
      A* kernel_gradients = to_logits ? scratch.line : to_kernels ? scratch.kernel_gradients : nullptr;
      by_taps(conv.K, [&]<int K>() {
        differentiate_position<A, K>(conv, scratch, stretch, g, x, at, g.at(t), results(t), kernel_gradients);
      });
      if (to_logits) convert(logits_at(t), scratch.line, place.heads * conv.K);
    }
  };
  const auto outside = [&](int64_t from, int64_t to) {  // positions beside the place, whose gradients reach its inputs
    Place neighbours = place;
    if (from < to) neighbours.narrow(conv, from, to), differentiate(neighbours, in_runs, false);
  };
  if (to_inputs) outside(first, place.t);
  each_stretch(conv, place, [&](const Place& stretch, bool inner) { differentiate(stretch, inner && in_runs, true); });
  if (to_inputs) outside(place.t_end, last);
  for (int64_t h = 0; light != nullptr && h < place.heads; ++h)
    for (int64_t j = 0; j < conv.K; ++j) light[h * conv.K + j] += scratch.kernel_gradients[j * scratch.row + h];
}
