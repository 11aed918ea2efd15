// The exponential of a number, and reductions.

inline double exponential(double x) { return __builtin_exp(x); }

// e^x for x <= 0, 0 for x < -87, NaN for NaN: 2^n e^r with |r| <= ln(2) / 2, and the series of e^r to r^7 / 7!, which
// leaves 5e-9.
inline float exponential(float given) {
  const float x = given < -87.0f ? -87.0f : given;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = x * 1.44269504f + shift;
  const float n = shifted - shift;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const float power = __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) + 127) << 23);
  return given < -87.0f ? 0.0f : series * power;
}

template <class A>
A largest(const A* x, int64_t size) {
  constexpr int n = kLanes<A>;
  A top = x[0];
  int64_t i = 0;
  if (size >= n) {
    Vec<A> tops = load(x);
    for (i = n; i + n <= size; i += n) {
      const Vec<A> next = load(x + i);
      tops = next > tops ? next : tops;
    }
    for (int l = 0; l < n; ++l) top = tops[l] > top ? tops[l] : top;
  }
  for (; i < size; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

template <class A>
A total(const A* x, int64_t size) {
  constexpr int n = kLanes<A>;
  Vec<A> sums = {};
  int64_t i = 0;
  for (; i + n <= size; i += n) sums += load(x + i);
  A sum = 0;
  for (int l = 0; l < n; ++l) sum += sums[l];
  for (; i < size; ++i) sum += x[i];
  return sum;
}

template <class A, class S>
A dot(const A* x, const S* y, int64_t size) {
  constexpr int n = kLanes<A>;
  Vec<A> sums = {};
  int64_t i = 0;
  for (; i + n <= size; i += n) sums += load(x + i) * load_as<A>(y + i);
  A sum = 0;
  for (int l = 0; l < n; ++l) sum += sums[l];
  for (; i < size; ++i) sum += x[i] * load(y[i]);
  return sum;
}
