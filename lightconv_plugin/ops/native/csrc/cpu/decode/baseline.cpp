#define LIGHTCONV_DECODE baseline_decode
#include "cpu/decode/kernels.inl"
