#define LIGHTCONV_TABLE avx512_kernels
#define LIGHTCONV_BITS 512
#include "cpu/kernels.inl"
