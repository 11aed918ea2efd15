// The types S of numbers in memory, 16-bit ones among them, and the type that sums over S are taken in.

struct Bf16 {
  uint16_t bits;
};

inline float float_of(Bf16 from) { return __builtin_bit_cast(float, static_cast<uint32_t>(from.bits) << 16); }

inline Bf16 bf16_of(float from) {  // to nearest, ties to even; NaN stays NaN
  const uint32_t bits = __builtin_bit_cast(uint32_t, from);
  return {from != from ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

struct F16 {
  uint16_t bits;
};

// float16's bits, in a word or a vector of words, to float32. Its exponents are 112 less; numbers without one are whole
// multiples of 2^-24, the last bit of 0.5.
template <class Float, class Word>
inline Float float_of_half(Word half) {
  const Word size = half & 0x7FFFu, normal = (size << 13) + (size < 0x7C00u ? 112u << 23 : 224u << 23);
  const Word small = __builtin_bit_cast(Word, __builtin_bit_cast(Float, size + 0x3F000000u) - 0.5f);
  return __builtin_bit_cast(Float, (size < 0x400u ? small : normal) | (half & 0x8000u) << 16);
}

inline F16 f16_of(float from) {  // to nearest, ties to even; NaN stays NaN
  const uint32_t bits = __builtin_bit_cast(uint32_t, from), size = bits & 0x7FFFFFFF;
  const uint32_t normal = (size - (112u << 23) + 0xFFF + ((size >> 13) & 1)) >> 13;
  const uint32_t small = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, size) + 0.5f) - 0x3F000000;
  const uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
  const uint32_t rounded = size < 0x38800000 ? small : size < 0x47800000 ? normal : large;
  return {static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000))};
}

// Numbers of memory as those that are computed with, and back.
inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(Bf16 x) { return float_of(x); }
inline float load(F16 x) { return float_of_half<float, uint32_t>(x.bits); }

inline void store(float& to, float x) { to = x; }
inline void store(double& to, double x) { to = x; }
inline void store(Bf16& to, float x) { to = bf16_of(x); }
inline void store(F16& to, float x) { to = f16_of(x); }

template <class S>
using Sums = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Calls as(S{}) for the type S of the numbers in memory.
template <class As>
inline void by_type(Scalar type, As as) {
  switch (type) {
    case Scalar::f32: return as(float{});
    case Scalar::f64: return as(double{});
    case Scalar::bf16: return as(Bf16{});
    case Scalar::f16: return as(F16{});
  }
}
