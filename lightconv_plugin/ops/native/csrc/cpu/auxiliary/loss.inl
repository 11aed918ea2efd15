// The cross entropy of rows of logits: what it needs of each row, and its gradient.

template <class A, class S>
inline Vec<A> load_part(const S* from, int64_t count, A other) {  // `other` in the lanes from count on
  if (count >= kLanes<A>) return load_as<A>(from);
  Vec<A> v = Vec<A>{} + other;
  for (int64_t l = 0; l < count; ++l) v[l] = load(from[l]);
  return v;
}

// Of each row of V logits: the largest, the sums of exp(logit - largest) and of logit - largest, and the target's (if
// there is one).
template <class S>
void loss_rows_of(const LossTask& task, double* rows, int64_t begin, int64_t end) {
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

// gradient = scale * exp(logit - log_sum) - share - (at the target: extra); rows whose target is negative get 0.
template <class S>
void loss_gradient_of(const LossTask& task, const double* log_sums, double scale, double share, double extra,
                      void* gradient, int64_t begin, int64_t end) {
  using A = Sums<S>;
  constexpr int n = kLanes<A>;
  const int64_t V = task.V;
  for (int64_t row = begin; row < end; ++row) {
    const S* x = static_cast<const S*>(task.logits) + row * V;
    S* to = static_cast<S*>(gradient) + row * V;
    const int64_t target = task.target[row];
    if (target < 0) {
      for (int64_t v = 0; v < V; ++v) store(to[v], 0);
      continue;
    }
    // in two parts, since float32 rounds the log-sum of large logits
    const A high = static_cast<A>(log_sums[row]), low = static_cast<A>(log_sums[row] - static_cast<double>(high));
    const A times = static_cast<A>(scale), less = static_cast<A>(share);
    for (int64_t v = 0; v < V; v += n) {
      A lanes[n];
      store(lanes, times * exp_of(load_part<A>(x + v, V - v, A{0}) - high - low) - less);
      convert(to + v, lanes, V - v < n ? V - v : n);
    }
    const A at = load(x[target]);
    store(to[target], times * exp_of(Vec<A>{} + (at - high - low))[0] - less - static_cast<A>(extra));
  }
}
