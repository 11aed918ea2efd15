// bfloat16 as the kernels use it, on a CPU.
#pragma once

struct __nv_bfloat16 {
  unsigned short bits;
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline float __bfloat162float(__nv_bfloat16 value) { return __builtin_bit_cast(float, static_cast<unsigned>(value.bits) << 16); }

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  if (value != value) return {0x7fff};
  return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
