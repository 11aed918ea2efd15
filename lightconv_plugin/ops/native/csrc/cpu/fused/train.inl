// The kernels of training: dropout, and the cross entropy of rows of logits.

// ---- Dropout's mask, recomputed wherever it is needed ----

// Numbers come in groups of 64. The mask of number 16 * w + l of group g is word w of the block with counter (n low, n
// high, 0, 1), n = 16 * g + l, and key = the two halves of the seed; see random.h. The number is kept if that word is
// at least round(p * 2^32), p in float32. The last word of the counter is 1 here and 0 for DropConnect, so that one
// seed does not give both the same numbers.

constexpr int kGroup = 64, kLane = 16;

template <class S>
void dropout_groups(const Dropout& d, int64_t begin, int64_t end) {
  const uint32_t threshold = least_kept(d.probability);
  const Sums<S> kept = 1 / (1 - static_cast<Sums<S>>(d.probability));
  for (int64_t group = begin; group < end; ++group) {
    uint32_t c[4][kLane];
    for (int l = 0; l < kLane; ++l) {
      const uint64_t n = static_cast<uint64_t>(group) * kLane + static_cast<uint64_t>(l);
      c[0][l] = static_cast<uint32_t>(n), c[1][l] = static_cast<uint32_t>(n >> 32), c[2][l] = 0, c[3][l] = 1;
    }
    philox_lanes<kLane>(c, d.seed);
    const S* from = static_cast<const S*>(d.x) + group * kGroup;
    S* to = static_cast<S*>(d.y) + group * kGroup;
    const int64_t left = d.count - group * kGroup;
    if (left >= kGroup) {
      for (int w = 0; w < 4; ++w) {
        for (int l = 0; l < kLane; ++l) {
          const Sums<S> value = load(from[w * kLane + l]);  // always read: a branch prevents vectors
          store(to[w * kLane + l], c[w][l] >= threshold ? value * kept : 0);
        }
      }
    } else {
      for (int64_t i = 0; i < left; ++i)
        store(to[i], c[i / kLane][i % kLane] >= threshold ? load(from[i]) * kept : 0);
    }
  }
}

// ---- The cross entropy: statistics of each row of logits, and the gradient ----

template <class A, class S>
inline Vec<A> load_part(const S* from, int64_t count, A other) {  // `other` in the lanes from count on
  if (count >= kLanes<A>) return load_as<A>(from);
  Vec<A> v = Vec<A>{} + other;
  for (int64_t l = 0; l < count; ++l) v[l] = load(from[l]);
  return v;
}

// Writes, for each row of V logits, the largest, the sums of exp(logit - largest) and of logit - largest, and the logit
// of the target (0 if the row does not count).
template <class S>
void loss_rows(const LossTask& task, double* rows, int64_t begin, int64_t end) {
  using A = Sums<S>;
  constexpr int n = kLanes<A>;
  constexpr A lowest = -__builtin_inf();
  const int64_t V = task.V;
  for (int64_t row = begin; row < end; ++row) {
    const S* x = static_cast<const S*>(task.logits) + row * V;
    Vec<A> most = Vec<A>{} + lowest, plain{}, total{};
    for (int64_t v = 0; v < V; v += n) {
      const Vec<A> here = load_part<A>(x + v, V - v, lowest);
      most = most > here ? most : here;
    }
    const Vec<A> top = largest<A>(most);
    for (int64_t v = 0; v < V; v += n) {
      total += exp_of(load_part<A>(x + v, V - v, lowest) - top);
      plain += load_part<A>(x + v, V - v, top[0]) - top;
    }
    const A target = task.target[row] >= 0 ? load(x[task.target[row]]) : 0;
    double* to = rows + 4 * row;
    to[0] = top[0], to[1] = sum<A>(total)[0], to[2] = sum<A>(plain)[0], to[3] = target;
  }
}

template <class S>
void loss_gradient(const LossTask& task, const LossGradient& g, int64_t begin, int64_t end) {
  using A = Sums<S>;
  constexpr int n = kLanes<A>;
  const int64_t V = task.V;
  for (int64_t row = begin; row < end; ++row) {
    const S* x = static_cast<const S*>(task.logits) + row * V;
    S* to = static_cast<S*>(g.gradient) + row * V;
    const int64_t target = task.target[row];
    if (target < 0) {
      for (int64_t v = 0; v < V; ++v) store(to[v], 0);
      continue;
    }
    // in two parts, since float32 would round the log-sum of large logits
    const A high = static_cast<A>(g.log_sums[row]), low = static_cast<A>(g.log_sums[row] - static_cast<double>(high));
    const A times = static_cast<A>(g.scale), less = static_cast<A>(g.share);
    for (int64_t v = 0; v < V; v += n) {
      A lanes[n];
      store(lanes, times * exp_of(load_part<A>(x + v, V - v, A{0}) - high - low) - less);
      convert(to + v, lanes, V - v < n ? V - v : n);
    }
    const A at = load(x[target]);
    store(to[target], times * exp_of(Vec<A>{} + (at - high - low))[0] - less - static_cast<A>(g.extra));
  }
}
