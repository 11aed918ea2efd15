// Vectors of LIGHTCONV_BITS bits through the compiler's vector extensions.

constexpr int kVectorBytes = LIGHTCONV_BITS / 8;

template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes)));
};
template <class A>
using Vec = typename VectorOf<A>::type;
template <class A>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));

template <class A>
inline Vec<A> load(const A* from) {
  Vec<A> v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class A>
inline void store(A* to, Vec<A> v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <class A>
struct IndexOf {
  typedef std::conditional_t<sizeof(A) == 4, int32_t, int64_t> type __attribute__((vector_size(kVectorBytes)));
};
template <class A>
using Index = typename IndexOf<A>::type;

template <class A>
inline Index<A> lane_numbers() {
  Index<A> lanes;
  for (int i = 0; i < kLanes<A>; ++i) lanes[i] = i;
  return lanes;
}

template <class A, int Distance>
inline Vec<A> crossed(Vec<A> v) {  // lane i gets what lane i ^ Distance holds
  Index<A> from;
  for (int i = 0; i < kLanes<A>; ++i) from[i] = i ^ Distance;
  return __builtin_shuffle(v, from);
}

template <class A, int Distance = kLanes<A> / 2>
inline Vec<A> sum(Vec<A> v) {  // in every lane
  if constexpr (Distance == 0)
    return v;
  else
    return sum<A, Distance / 2>(v + crossed<A, Distance>(v));
}

template <class A, int Distance = kLanes<A> / 2>
inline Vec<A> largest(Vec<A> v) {  // in every lane; a NaN may or may not be it
  if constexpr (Distance == 0) {
    return v;
  } else {
    const Vec<A> other = crossed<A, Distance>(v);
    return largest<A, Distance / 2>(v > other ? v : other);
  }
}

// exp for x <= 0 or NaN: 0 below float32's smallest normal number, NaN for NaN.
// n = round(x / ln 2), exp(x) = 2^n * exp(r), |r| <= ln 2 / 2, by the polynomial of Cephes' expf; error below 2 ulp.
inline Vec<float> exp_of(Vec<float> x) {
  typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
  const Vec<float> shift = Vec<float>{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec<float> n = (x * 1.44269504f + shift) - shift;
  const Vec<float> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  Vec<float> power;
  __builtin_memcpy(&power, &exponent, sizeof power);
  return x < -87.3f ? Vec<float>{} : p * power;
}

inline Vec<double> exp_of(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

template <class A, class S>
inline Vec<A> load_as(const S* from) {
  if constexpr (std::is_same_v<A, S>) {
    return load(from);
  } else {
    typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
    typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    Vec<A> v;
    __builtin_memcpy(&v, &words, sizeof v);
    return v;
  }
}

template <class To, class From>
inline void convert(To* __restrict to, const From* __restrict from, int64_t count) {
  if constexpr (std::is_same_v<To, From> && !std::is_same_v<To, Bf16>) {
    constexpr int64_t n = kLanes<To>;
    if (count >= n) {
      for (int64_t i = 0; i + n <= count; i += n) store(to + i, load(from + i));
      store(to + count - n, load(from + count - n));  // overlaps the one before
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) store(to[i], load(from[i]));
}

// Asks for memory that will soon be read or written: rows of a tensor lie pages apart, where no hardware prefetcher follows.
template <bool Write = false, class S>
inline void ask_for(const S* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(S))) __builtin_prefetch(from + i, Write);
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
