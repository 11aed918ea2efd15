// The types S of numbers in memory, including bfloat16, and the type in which sums over S are accumulated.

struct Bf16 {
  uint16_t bits;
};

// Conversions from numbers in memory to the type of computations, and back.
inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(Bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

inline void store(float& to, float x) { to = x; }
inline void store(double& to, double x) { to = x; }
inline void store(Bf16& to, float x) {  // rounds to nearest, ties to even; NaN stays NaN
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  to.bits = x != x ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

template <class S>
using Sums = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Calls as(S{}) for the type S of the numbers in memory.
template <class As>
inline void by_type(Scalar type, As as) {
  switch (type) {
    case Scalar::f32: return as(float{});
    case Scalar::f64: return as(double{});
    case Scalar::bf16: return as(Bf16{});
  }
}
