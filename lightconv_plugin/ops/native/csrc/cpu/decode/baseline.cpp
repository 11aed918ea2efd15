#define LIGHTCONV_DECODE baseline_decode
#define LIGHTCONV_BITS 128
#include "cpu/decode/kernels.inl"
