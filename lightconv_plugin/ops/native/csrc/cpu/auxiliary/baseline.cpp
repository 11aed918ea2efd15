#define LIGHTCONV_TABLE baseline_auxiliary
#define LIGHTCONV_BITS 128
#include "cpu/auxiliary/kernels.inl"
