// The kernels of generation: attention of one query a row, the best continuations, maps of few rows, and a block's rest.

// ---- Attention of one query a row over a sentence's keys ----

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

// ---- The best continuations of a hypothesis: log-softmax and a selection in two passes over its logits ----

// Puts (value, token) in its place among the `count` best, the largest first; of equals the one that came first.
inline void insert(float value, int32_t token, int64_t count, float* values, int32_t* tokens) {
  int64_t i = count - 1;
  for (; i > 0 && value > values[i - 1]; --i) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
  values[i] = value, tokens[i] = token;
}

void best_rows(const Search& s, void* scratch, int64_t begin, int64_t end) {
  float* tops = static_cast<float*>(scratch);  // of each chunk
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
      for (int64_t i = 0; i < size; ++i) copy[i] = exponential((logits[v + i] - top) * scale);
      sum += total(copy, size);
    }
    const auto allowed = [&](int64_t token) { return token != s.pad && token != s.banned; };
    const float log_sum = std::log(sum), before = s.scores[n];
    for (int64_t i = 0; i < s.count; ++i) values[i] = -INFINITY, tokens[i] = static_cast<int32_t>(i);
    if (sum != sum || top == -INFINITY) continue;  // not a number: no continuation is likely
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

// ---- A linear map of a few rows: the weights are read once, at the speed of the memory, each against all rows ----

template <int Rows, int Columns>
void linear_tile(const Linear& l, int64_t row, int64_t column) {
  constexpr int64_t kVector = kLanes<float>;
  Vec<float> sum[Rows][Columns] = {};
  const float* x = l.x + row * l.in;
  const float* weight = l.weight + column * l.in;
  int64_t i = 0;
  for (; i + kVector <= l.in; i += kVector) {
    Vec<float> w[Columns];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      w[c] = load(weight + c * l.in + i);
      __builtin_prefetch(weight + (Columns + c) * l.in + i);  // the next columns', which are the next to be read
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec<float> value = load(x + r * l.in + i);
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) sum[r][c] += value * w[c];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      float whole = l.bias == nullptr ? 0.0f : l.bias[column + c];
      for (int64_t j = i; j < l.in; ++j) whole += x[r * l.in + j] * weight[c * l.in + j];
      for (int64_t lane = 0; lane < kVector; ++lane) whole += sum[r][c][lane];
      l.y[(row + r) * l.out + column + c] = whole;
    }
  }
}

template <int Columns>
void linear_rows(const Linear& l, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= l.rows; row += 4) linear_tile<4, Columns>(l, row, column);
  for (; row < l.rows; ++row) linear_tile<1, Columns>(l, row, column);
}

void linear_columns(const Linear& l, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) linear_rows<4>(l, column);
  for (; column < end; ++column) linear_rows<1>(l, column);
}

// ---- Between the products of a decoder's block: gate and layer norm, of a few rows ----

// Rows (a, b) of 2C numbers give a * sigmoid(b).
void gate_rows(const float* x, int64_t rows, int64_t C, float* __restrict__ y) {
  for (int64_t n = 0; n < rows; ++n, x += 2 * C, y += C) {
    for (int64_t c = 0; c < C; ++c) {
      const float b = x[C + c];
      const float small = exponential(b < 0 ? b : -b);
      y[c] = x[c] * ((b < 0 ? small : 1.0f) / (1.0f + small));
    }
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
