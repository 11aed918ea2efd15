#define LIGHTCONV_TABLE avx2_auxiliary
#define LIGHTCONV_BITS 256
#include "cpu/auxiliary/kernels.inl"
