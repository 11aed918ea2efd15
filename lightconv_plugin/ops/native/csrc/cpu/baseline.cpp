#define LIGHTCONV_TABLE baseline_kernels
#define LIGHTCONV_BITS 128
#include "cpu/kernels.inl"
