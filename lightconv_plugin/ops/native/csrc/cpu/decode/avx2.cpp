#define LIGHTCONV_DECODE avx2_decode
#define LIGHTCONV_BITS 256
#include "cpu/decode/kernels.inl"
