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
inline Vec<A> largest(Vec<A> v) {  // in every lane; if a lane is NaN, the result may or may not be NaN
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

// Conversions from numbers in memory to vectors, and back. bfloat16 has 16 bits for each lane, rounded as in types.inl.
template <class A>
struct BitsOf {
  typedef std::conditional_t<sizeof(A) == 4, uint32_t, uint64_t> type __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t halves __attribute__((vector_size(kVectorBytes / 2)));
};
template <class A>
using Bits = typename BitsOf<A>::type;

template <class A>
inline Vec<A> widened(typename BitsOf<A>::halves halves) {
  return __builtin_bit_cast(Vec<A>, __builtin_convertvector(halves, Bits<A>) << 16);
}

template <class A>
inline Bits<A> rounded(Vec<A> v) {
  const Bits<A> bits = __builtin_bit_cast(Bits<A>, v);
  return v != v ? Bits<A>{} + 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

template <class A, class S>
inline Vec<A> load_as(const S* from) {
  if constexpr (std::is_same_v<A, S>) {
    return load(from);
  } else {
    typename BitsOf<A>::halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    return widened<A>(halves);
  }
}

template <class A, class S>
inline void store_as(S* to, Vec<A> v) {
  if constexpr (std::is_same_v<A, S>) {
    store(to, v);
  } else {
    const auto halves = __builtin_convertvector(rounded<A>(v), typename BitsOf<A>::halves);
    __builtin_memcpy(to, &halves, sizeof halves);
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

// Prefetches memory that will soon be read or written: rows of a tensor are pages apart, where hardware prefetchers do
// not follow.
template <bool Write = false, class S>
inline void ask_for(const S* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(S))) __builtin_prefetch(from + i, Write);
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Calls call<N>() for the N in the list that equals n, or else for the last one.
template <int First, int... Others, class Call>
inline void by_number(int64_t n, Call call) {
  if constexpr (sizeof...(Others) == 0) {
    call.template operator()<First>();
  } else {
    if (n == First) return call.template operator()<First>();
    by_number<Others...>(n, call);
  }
}

// ---- Groups of neighbours, split into vectors ----

// Numbers of a piece, which is 16 bytes of a vector. A shuffle within the pieces is one instruction at any width.
template <class A>
constexpr int kPiece = 16 / static_cast<int>(sizeof(A));

// Loads a vector from pieces in memory whose stride is `apart` numbers; store_pieces stores it back. Memory between two
// pieces may be read, but nothing before the first or after the last piece.
template <class A, class S>
inline Vec<A> load_pieces(const S* from, int64_t apart) {
  constexpr int m = kPiece<A>, pieces = kLanes<A> / m;
  if constexpr (std::is_same_v<A, S>) {
    Vec<A> v = load(from);
#pragma GCC unroll 4
    for (int piece = 1; piece < pieces; ++piece) {
      Index<A> mask;
      for (int i = 0; i < kLanes<A>; ++i) mask[i] = i / m == piece ? kLanes<A> + i : i;
      v = __builtin_shuffle(v, load(from + piece * (apart - m)), mask);
    }
    return v;
  } else {
    typedef uint64_t Quarters __attribute__((vector_size(kVectorBytes / 2)));
    Quarters quarters;
#pragma GCC unroll 4
    for (int piece = 0; piece < pieces; ++piece) {
      uint64_t numbers;
      __builtin_memcpy(&numbers, from + piece * apart, sizeof numbers);
      quarters[piece] = numbers;
    }
    return widened<A>(__builtin_bit_cast(typename BitsOf<A>::halves, quarters));
  }
}

template <class A, class S>
inline void store_pieces(S* to, int64_t apart, Vec<A> v) {
  constexpr int m = kPiece<A>;
  S numbers[kLanes<A>];
  store_as<A>(numbers, v);
#pragma GCC unroll 4
  for (int piece = 0; piece < kLanes<A> / m; ++piece)
    __builtin_memcpy(to + piece * apart, numbers + piece * m, m * sizeof(S));
}

// Transposes matrices (Rows, Columns), one per piece of the vectors in `matrix`, row by row. Returns vector number To
// of the result.
template <class A, int Rows, int Columns, int To>
inline Vec<A> turned(const Vec<A>* matrix) {
  constexpr int m = kPiece<A>, n = kLanes<A>;
  constexpr auto source = [](int i) { return (To * kPiece<A> + i) % Rows * Columns + (To * kPiece<A> + i) / Rows; };
  Index<A> mask;
  if constexpr (m == 2) {
    for (int i = 0; i < n; i += m) mask[i] = i + source(0) % m, mask[i + 1] = n + i + source(1) % m;
    return __builtin_shuffle(matrix[source(0) / m], matrix[source(1) / m], mask);
  } else {  // first shuffles for pairs of neighbours with the four numbers, which other vectors can share
    Index<A> low, high;
    for (int i = 0; i < n; i += m) {
      for (int k = 0; k < 2; ++k) {
        low[i + k] = i + source(0) % m / 2 * 2 + k, low[i + 2 + k] = n + i + source(1) % m / 2 * 2 + k;
        high[i + k] = i + source(2) % m / 2 * 2 + k, high[i + 2 + k] = n + i + source(3) % m / 2 * 2 + k;
      }
      mask[i] = i + source(0) % 2, mask[i + 1] = i + 2 + source(1) % 2;
      mask[i + 2] = n + i + source(2) % 2, mask[i + 3] = n + i + 2 + source(3) % 2;
    }
    return __builtin_shuffle(__builtin_shuffle(matrix[source(0) / m], matrix[source(1) / m], low),
                             __builtin_shuffle(matrix[source(2) / m], matrix[source(3) / m], high), mask);
  }
}

template <class A, int Rows, int Columns>
[[gnu::always_inline]] inline void turn(const Vec<A>* matrix, Vec<A>* to) {
  [&]<int... V>(std::integer_sequence<int, V...>) __attribute__((always_inline)) {
    ((to[V] = turned<A, Rows, Columns, V>(matrix)), ...);
  }(std::make_integer_sequence<int, Rows * Columns / kPiece<A>>{});
}

// split: from a group of K neighbours per lane to K vectors, one for each index in the group. join: back. If K is even,
// bfloat16 numbers are moved in pairs.
template <class A, int K, class S>
[[gnu::always_inline]] inline void split(const S* groups, Vec<A> (&places)[K]) {
  constexpr int m = kPiece<A>;
  if constexpr (!std::is_same_v<A, S> && K % 2 == 0) {
    Vec<A> pairs[K / 2];
    split<A, K / 2>(reinterpret_cast<const A*>(groups), pairs);
#pragma GCC unroll 8
    for (int j = 0; j < K; j += 2) {
      const Bits<A> both = __builtin_bit_cast(Bits<A>, pairs[j / 2]);
      places[j] = __builtin_bit_cast(Vec<A>, both << 16), places[j + 1] = __builtin_bit_cast(Vec<A>, both & 0xFFFF0000);
    }
  } else {
    Vec<A> pieces[K];
#pragma GCC unroll 8
    for (int i = 0; i < K; ++i) pieces[i] = load_pieces<A>(groups + i * m, K * m);
    turn<A, m, K>(pieces, places);
  }
}

template <class A, int K, class S>
[[gnu::always_inline]] inline void join(const Vec<A> (&places)[K], S* groups) {
  constexpr int m = kPiece<A>;
  if constexpr (!std::is_same_v<A, S> && K % 2 == 0) {
    Vec<A> pairs[K / 2];
#pragma GCC unroll 8
    for (int j = 0; j < K; j += 2)
      pairs[j / 2] = __builtin_bit_cast(Vec<A>, rounded<A>(places[j]) | rounded<A>(places[j + 1]) << 16);
    join<A, K / 2>(pairs, reinterpret_cast<A*>(groups));
  } else {
    Vec<A> pieces[K];
    turn<A, K, m>(places, pieces);
#pragma GCC unroll 8
    for (int i = 0; i < K; ++i) store_pieces<A>(groups + i * m, K * m, pieces[i]);
  }
}

// ---- Arrays in memory ----

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

// Returns the 64-bit products of the lower halves of 64-bit lanes.
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

// Replaces the counters c[word][block] of several blocks by random words, with blocks in the lanes of vectors. A 64-bit
// lane has a word in its lower half, and its upper half is ignored. The even blocks are computed first, then the odd
// ones.
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

// Returns the threshold of a mask: a number is kept if its random word is at least this.
inline uint32_t least_kept(float probability) {
  return static_cast<uint32_t>(static_cast<double>(probability) * 4294967296.0 + 0.5);
}
