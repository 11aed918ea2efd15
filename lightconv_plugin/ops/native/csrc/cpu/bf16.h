// bfloat16 as it lies in memory. Included inside the unnamed namespace of each file that needs it: the files are
// compiled for several vector widths.

struct Bf16 {
  uint16_t bits;
};

inline float float_of(Bf16 from) { return __builtin_bit_cast(float, static_cast<uint32_t>(from.bits) << 16); }

inline Bf16 bf16_of(float from) {  // to nearest, ties to even; NaN stays NaN
  const uint32_t bits = __builtin_bit_cast(uint32_t, from);
  return {from != from ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}
