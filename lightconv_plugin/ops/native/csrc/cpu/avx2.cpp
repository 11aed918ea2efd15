#define LIGHTCONV_TABLE avx2_kernels
#define LIGHTCONV_BITS 256
#include "cpu/kernels.inl"
