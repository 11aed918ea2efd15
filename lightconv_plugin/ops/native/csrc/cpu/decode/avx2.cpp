#define LIGHTCONV_DECODE avx2_decode
#include "cpu/decode/kernels.inl"
