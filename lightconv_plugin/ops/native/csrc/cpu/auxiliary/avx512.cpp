#define LIGHTCONV_TABLE avx512_auxiliary
#define LIGHTCONV_BITS 512
#include "cpu/auxiliary/kernels.inl"
