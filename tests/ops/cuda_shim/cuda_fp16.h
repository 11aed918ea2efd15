// float16 as the kernels use it, on a CPU.
#pragma once

struct __half {
  _Float16 value;
};

inline float __half2float(__half half) { return static_cast<float>(half.value); }
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
inline __half __ushort_as_half(unsigned short bits) { return __builtin_bit_cast(__half, bits); }
inline unsigned short __half_as_ushort(__half half) { return __builtin_bit_cast(unsigned short, half); }
