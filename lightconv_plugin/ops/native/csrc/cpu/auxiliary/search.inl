// The best continuations of a hypothesis: log-softmax and a selection in two passes over its logits.

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
    const float log_sum = std::log(sum), before = s.scores == nullptr ? 0 : s.scores[n];
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
