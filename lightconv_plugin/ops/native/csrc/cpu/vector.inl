// Vectors of LIGHTCONV_BITS bits through the compiler's vector extensions; reductions, exponentials, random words.

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
    const Words words = __builtin_convertvector(halves, Words);
    return __builtin_bit_cast(Vec<A>, words << 16);
  }
}

template <class To, class From>
inline void convert(To* __restrict to, const From* __restrict from, int64_t count) {
  if constexpr (std::is_same_v<To, From> && sizeof(To) > 2) {
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

// Calls call<N>() for the N of the list that n is, or else for the last.
template <int First, int... Others, class Call>
inline void by_number(int64_t n, Call call) {
  if constexpr (sizeof...(Others) == 0) {
    call.template operator()<First>();
  } else {
    if (n == First) return call.template operator()<First>();
    by_number<Others...>(n, call);
  }
}

// ---- Of numbers in memory ----

// x becomes e^x, for x <= 0 or NaN.
template <class A>
void exponentials(A* x, int64_t size) {
  constexpr int n = kLanes<A>;
  int64_t i = 0;
  for (; i + n <= size; i += n) store(x + i, exp_of(load(x + i)));
  if (i == size) return;
  A rest[n] = {};
  for (int64_t l = 0; i + l < size; ++l) rest[l] = x[i + l];
  store(rest, exp_of(load(rest)));
  for (int64_t l = 0; i + l < size; ++l) x[i + l] = rest[l];
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

// ---- Random words of random.h, a block in each lane ----

template <int Bytes>
struct LanesOf {
  typedef uint64_t words __attribute__((vector_size(Bytes)));
  typedef int ints __attribute__((vector_size(Bytes)));
  typedef long long longs __attribute__((vector_size(Bytes)));
};

// The whole products of the lower halves of 64-bit lanes.
template <int Bytes, class Lanes = typename LanesOf<Bytes>::words>
inline Lanes low_products(Lanes a, Lanes b) {
#if defined(__x86_64__)  // the compiler does not see that one instruction does it
  using Ints = typename LanesOf<Bytes>::ints;
  using Longs = typename LanesOf<Bytes>::longs;
  if constexpr (Bytes == 16) return (Lanes)__builtin_ia32_pmuludq128((Ints)a, (Ints)b);
#if LIGHTCONV_BITS >= 256
  if constexpr (Bytes == 32) return (Lanes)__builtin_ia32_pmuludq256((Ints)a, (Ints)b);
#endif
#if LIGHTCONV_BITS >= 512
  if constexpr (Bytes == 64) return (Lanes)__builtin_ia32_pmuludq512_mask((Ints)a, (Ints)b, Longs{}, 0xFF);
#endif
#endif
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
}

// Blocks of words side by side in vectors: counters c[word][block] become random words. Lanes of 64 bits hold a word in
// their lower half, and anything above: first those of even blocks, then those of odd ones.
template <int Blocks>
inline void philox_lanes(uint32_t (&c)[4][Blocks], uint64_t seed) {
  constexpr int bytes = Blocks * 4 < kVectorBytes ? Blocks * 4 : kVectorBytes;
  using Lanes = typename LanesOf<bytes>::words;
  for (int first = 0; first < Blocks; first += bytes / 4) {
    Lanes given[4], made[2][4];
    for (int word = 0; word < 4; ++word) __builtin_memcpy(&given[word], c[word] + first, bytes);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      Lanes c0 = given[0] >> 32 * odd, c1 = given[1] >> 32 * odd, c2 = given[2] >> 32 * odd, c3 = given[3] >> 32 * odd;
      uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 7
      for (int round = 0; round < kPhiloxRounds; ++round, key0 += kPhiloxKeyA, key1 += kPhiloxKeyB) {
        const Lanes a = low_products<bytes>(c0, Lanes{} + kPhiloxA), b = low_products<bytes>(c2, Lanes{} + kPhiloxB);
        c0 = (b >> 32) ^ c1 ^ key0, c1 = b, c2 = (a >> 32) ^ c3 ^ key1, c3 = a;
      }
      made[odd][0] = c0, made[odd][1] = c1, made[odd][2] = c2, made[odd][3] = c3;
    }
    for (int word = 0; word < 4; ++word) {
      const Lanes both = (made[0][word] & 0xFFFFFFFF) | made[1][word] << 32;
      __builtin_memcpy(c[word] + first, &both, bytes);
    }
  }
}

// A random word keeps what it stands for where it is at least this.
inline uint32_t least_kept(float probability) {
  return static_cast<uint32_t>(static_cast<double>(probability) * 4294967296.0 + 0.5);
}
