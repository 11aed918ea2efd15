#define LIGHTCONV_DECODE avx512_decode
#define LIGHTCONV_BITS 512
#include "cpu/decode/kernels.inl"
