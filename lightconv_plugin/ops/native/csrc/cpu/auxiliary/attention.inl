// Attention of one query a row over a sentence's keys.

template <class T, class A = Sums<T>>
void attend_rows(const Attention& a, void* scratch, int64_t begin, int64_t end) {
  const int64_t R = a.C / a.H;
  A* query = static_cast<A*>(scratch);
  A* sum = query + R;
  A* weights = sum + R;
  const A scale = 1 / std::sqrt(static_cast<A>(R));
  for (int64_t n = begin; n < end; ++n) {
    const int64_t sentence = a.sentence[n];
    const T* keys = static_cast<const T*>(a.keys) + sentence * a.S * a.C;
    const T* values = static_cast<const T*>(a.values) + sentence * a.S * a.C;
    const bool* padding = a.padding == nullptr ? nullptr : a.padding + sentence * a.S;
    for (int64_t h = 0; h < a.C; h += R) {
      const T* q = static_cast<const T*>(a.query) + n * a.C + h;
      for (int64_t r = 0; r < R; ++r) query[r] = load(q[r]) * scale, sum[r] = 0;
      for (int64_t s = 0; s < a.S; ++s)
        weights[s] = padding != nullptr && padding[s] ? A(-INFINITY) : dot(query, keys + s * a.C + h, R);
      const A top = largest(weights, a.S);
      for (int64_t s = 0; s < a.S; ++s) weights[s] -= top;
      for (int64_t s = 0; s < a.S; ++s) weights[s] = exponential(weights[s]);
      for (int64_t s = 0; s < a.S; ++s)
        if (padding != nullptr && padding[s]) weights[s] = 0;
      const A sum_of_weights = total(weights, a.S);
      const A normalizer = sum_of_weights == 0 ? A(0) : 1 / sum_of_weights;  // 0: all is padding, and so is the result
      for (int64_t s = 0; s < a.S; ++s) {
        const A weight = weights[s] * normalizer;
        const T* value = values + s * a.C + h;
        if (weight != 0)
          for (int64_t r = 0; r < R; ++r) sum[r] += weight * load(value[r]);
      }
      T* out = static_cast<T*>(a.out) + n * a.C + h;
      for (int64_t r = 0; r < R; ++r) store(out[r], sum[r]);
    }
  }
}
