// float16 as the kernels use it, on a CPU.
#pragma once

struct __half {
  _Float16 value;
};

inline float __half2float(__half half) { return static_cast<float>(half.value); }
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
