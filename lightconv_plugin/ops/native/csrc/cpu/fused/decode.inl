// The kernels of generation: attention with one query per row, the best continuations, and what a decoder block
// computes between its matrix products. Those are in linear.inl.

// ---- Attention with one query per row, over the keys of its sentence ----

constexpr int kQueries = 5;  // rows of one sentence that read its keys and values together
constexpr int kKeys = 4;     // positions whose values are added at once, so that sums are seldom read and written

// products[q] = inner product of query q and the key, of R channels. Queries have the stride `stride`.
template <int Queries, class T, class A>
inline void multiply_key(const A* queries, int64_t stride, const T* key, int64_t R, A* products) {
  constexpr int n = kLanes<A>;
  Vec<A> sums[Queries] = {};
  int64_t r = 0;
  for (; r + n <= R; r += n) {
    const Vec<A> k = load_as<A>(key + r);
#pragma GCC unroll 5
    for (int q = 0; q < Queries; ++q) sums[q] += load(queries + q * stride + r) * k;
  }
#pragma GCC unroll 5
  for (int q = 0; q < Queries; ++q) {
    A whole = sum<A>(sums[q])[0];
    for (int64_t i = r; i < R; ++i) whole += queries[q * stride + i] * load(key[i]);
    products[q] = whole;
  }
}

// Adds the weighted values of `Keys` positions to sums, for each query. Both strides are from query to query.
template <int Queries, int Keys, class T, class A>
inline void add_values(const T* const* values, const A* weights, int64_t weight_stride, int64_t R, int64_t stride, A* sums) {
  constexpr int n = kLanes<A>;
  int64_t r = 0;
  for (; r + n <= R; r += n) {
    Vec<A> value[Keys];
#pragma GCC unroll 4
    for (int k = 0; k < Keys; ++k) value[k] = load_as<A>(values[k] + r);
#pragma GCC unroll 5
    for (int q = 0; q < Queries; ++q) {
      Vec<A> sum = load(sums + q * stride + r);
#pragma GCC unroll 4
      for (int k = 0; k < Keys; ++k) sum += weights[q * weight_stride + k] * value[k];
      store(sums + q * stride + r, sum);
    }
  }
  for (; r < R; ++r)
    for (int q = 0; q < Queries; ++q)
      for (int k = 0; k < Keys; ++k) sums[q * stride + r] += weights[q * weight_stride + k] * load(values[k][r]);
}

// Replaces `size` numbers, of which there may be none, by their softmax.
template <class A>
inline void softmax(A* x, int64_t size) {
  if (size == 0) return;
  const A top = largest(x, size);
  for (int64_t i = 0; i < size; ++i) x[i] -= top;
  exponentials(x, size);
  const A scale = 1 / total(x, size);
  for (int64_t i = 0; i < size; ++i) x[i] *= scale;
}

// Computes rows n to n + Queries, all of one sentence. Keys and values are read once for all of them, in order.
template <int Queries, class T, class A>
void attend_together(const Attention& a, void* scratch, int64_t n) {
  const int64_t R = a.C / a.H, sentence = a.sentence[n], weight_stride = a.H * a.S;
  const T* keys = static_cast<const T*>(a.keys) + sentence * a.S * a.C;
  const T* values = static_cast<const T*>(a.values) + sentence * a.S * a.C;
  A* queries = static_cast<A*>(scratch);
  A* sums = queries + Queries * a.C;
  A* weights = sums + Queries * a.C;  // (Queries, H, S)
  auto* seen = reinterpret_cast<int64_t*>(static_cast<double*>(scratch) + attend_scratch(a) - a.S);
  int64_t count = 0;  // of positions that are not padding
  for (int64_t s = 0; s < a.S; ++s)
    if (a.padding == nullptr || !a.padding[sentence * a.S + s]) seen[count++] = s;

  const A scale = 1 / std::sqrt(static_cast<A>(R));
  const T* given = static_cast<const T*>(a.query) + n * a.C;
  for (int64_t i = 0; i < Queries * a.C; ++i) queries[i] = load(given[i]) * scale, sums[i] = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t h = 0; h < a.H; ++h) {
      A products[Queries];
      multiply_key<Queries>(queries + h * R, a.C, keys + seen[i] * a.C + h * R, R, products);
      for (int q = 0; q < Queries; ++q) weights[q * weight_stride + h * a.S + i] = products[q];
    }
  }
  for (int64_t i = 0; i < Queries * a.H; ++i) softmax(weights + i * a.S, count);
  for (int64_t i = 0; i < count;) {
    const int64_t together = count - i < kKeys ? 1 : kKeys;
    for (int64_t h = 0; h < a.H; ++h) {
      const T* from[kKeys];
      for (int64_t k = 0; k < together; ++k) from[k] = values + seen[i + k] * a.C + h * R;
      const A* weight = weights + h * a.S + i;
      if (together == kKeys)
        add_values<Queries, kKeys>(from, weight, weight_stride, R, a.C, sums + h * R);
      else
        add_values<Queries, 1>(from, weight, weight_stride, R, a.C, sums + h * R);
    }
    i += together;
  }
  T* out = static_cast<T*>(a.out) + n * a.C;
  for (int64_t i = 0; i < Queries * a.C; ++i) store(out[i], sums[i]);
}

template <class T, class A = Sums<T>>
void attend_rows(const Attention& a, void* scratch, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end;) {
    int64_t rows = 1;
    while (rows < kQueries && n + rows < end && a.sentence[n + rows] == a.sentence[n]) ++rows;
    by_number<5, 4, 3, 2, 1>(rows, [&]<int Queries>() { attend_together<Queries, T, A>(a, scratch, n); });
    n += rows;
  }
}

// ---- The best continuations of a hypothesis: log-softmax and a selection in two passes over its logits ----

// Inserts (value, token) into the `count` best, the largest first, in place of the last one. Of equal values the
// earlier one stays before.
inline void insert(float value, int32_t token, int64_t count, float* values, int32_t* tokens) {
  int64_t i = count - 1;
  for (; i > 0 && value > values[i - 1]; --i) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
  values[i] = value, tokens[i] = token;
}

void best_rows(const Search& s, void* scratch, int64_t begin, int64_t end) {
  float* tops = static_cast<float*>(scratch);  // the largest logit of each chunk
  float copy[kSearchChunk];
  const float scale = 1 / s.temperature;
  for (int64_t n = begin; n < end; ++n) {
    const float* logits = s.logits + n * s.V;
    float* values = s.values + n * s.count;
    int32_t* tokens = s.tokens + n * s.count;
    float top = -INFINITY, sum = 0;
    for (int64_t v = 0, i = 0; v < s.V; v += kSearchChunk, ++i) {
      tops[i] = largest(logits + v, s.V - v < kSearchChunk ? s.V - v : kSearchChunk);
      top = tops[i] > top ? tops[i] : top;
    }
    for (int64_t v = 0; v < s.V; v += kSearchChunk) {
      const int64_t size = s.V - v < kSearchChunk ? s.V - v : kSearchChunk;
      for (int64_t i = 0; i < size; ++i) copy[i] = (logits[v + i] - top) * scale;
      exponentials(copy, size);
      sum += total(copy, size);
    }
    const auto allowed = [&](int64_t token) { return token != s.pad && token != s.banned; };
    const float log_sum = std::log(sum), before = s.scores[n];
    for (int64_t i = 0; i < s.count; ++i) values[i] = -INFINITY, tokens[i] = static_cast<int32_t>(i);
    if (sum != sum || top == -INFINITY) continue;  // NaN, or -inf in all: there is no continuation
    if (s.only >= 0) {
      const float value = (logits[s.only] - top) * scale - log_sum - (s.only == s.unk ? s.unk_penalty : 0) + before;
      if (allowed(s.only)) insert(value, static_cast<int32_t>(s.only), s.count, values, tokens);
      continue;
    }
    for (int64_t v = 0, i = 0; v < s.V; v += kSearchChunk, ++i) {
      if (!(tops[i] > values[s.count - 1])) continue;
      const int64_t stop = s.V - v < kSearchChunk ? s.V : v + kSearchChunk;
      for (int64_t token = v; token < stop; ++token)
        if (logits[token] > values[s.count - 1] && token != s.unk && allowed(token))
          insert(logits[token], static_cast<int32_t>(token), s.count, values, tokens);
    }
    for (int64_t i = 0; i < s.count; ++i) values[i] = (values[i] - top) * scale - log_sum + before;
    const float unk = (logits[s.unk] - top) * scale - log_sum - s.unk_penalty + before;
    if (allowed(s.unk) && unk > values[s.count - 1])
      insert(unk, static_cast<int32_t>(s.unk), s.count, values, tokens);
  }
}

// ---- Gate and layer norm of a few rows, between the matrix products of a decoder block ----

// Rows (a, b) of 2C numbers give a * sigmoid(b), of C numbers.
void gate_rows(const float* x, int64_t rows, int64_t C, float* __restrict__ y) {
  for (int64_t n = 0; n < rows; ++n, x += 2 * C, y += C) {
    for (int64_t c = 0; c < C; ++c) y[c] = -std::abs(x[C + c]);
    exponentials(y, C);
    for (int64_t c = 0; c < C; ++c) y[c] = x[c] * ((x[C + c] < 0 ? y[c] : 1.0f) / (1.0f + y[c]));
  }
}

// y = (x - mean) / sqrt(variance + eps) * scale + shift, row by row; y may be x.
void normalize_rows(const LayerNorm& norm, const float* x, int64_t rows, int64_t C, float* y) {
  for (int64_t n = 0; n < rows; ++n, x += C, y += C) {
    const float mean = total(x, C) / C;
    for (int64_t c = 0; c < C; ++c) y[c] = x[c] - mean;
    const float scale = 1 / std::sqrt(dot(static_cast<const float*>(y), static_cast<const float*>(y), C) / C + norm.eps);
    for (int64_t c = 0; c < C; ++c) y[c] = y[c] * scale * norm.scale[c] + norm.shift[c];
  }
}
