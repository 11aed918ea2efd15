#define LIGHTCONV_DECODE avx512_decode
#include "cpu/decode/kernels.inl"
