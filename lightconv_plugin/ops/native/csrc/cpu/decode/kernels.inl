// The kernels of decoding, compiled once for each vector width: LIGHTCONV_DECODE names the table, LIGHTCONV_BITS the
// width. Everything is in an unnamed namespace: code for one width must never be linked into another's.
#include <cmath>
#include <cstring>

#include "cpu/decode/kernels.h"

namespace lightconv {
namespace {

#include "cpu/bf16.h"
#include "cpu/decode/numbers.inl"
#include "cpu/decode/attention.inl"
#include "cpu/decode/block.inl"
#include "cpu/decode/linear.inl"
#include "cpu/decode/search.inl"
#include "cpu/decode/step.inl"

void step(const Step& s, void* scratch, int64_t begin, int64_t end) {
  if (s.type == Scalar::f32) step_rows<float, float>(s, scratch, begin, end);
  if (s.type == Scalar::f64) step_rows<double, double>(s, scratch, begin, end);
  if (s.type == Scalar::bf16) step_rows<Bf16, float>(s, scratch, begin, end);
}

void attend(const Attention& a, void* scratch, int64_t begin, int64_t end) {
  if (a.type == Scalar::f32) attend_rows<float, float>(a, scratch, begin, end);
  if (a.type == Scalar::f64) attend_rows<double, double>(a, scratch, begin, end);
  if (a.type == Scalar::bf16) attend_rows<Bf16, float>(a, scratch, begin, end);
}

}  // namespace

const DecodeKernels LIGHTCONV_DECODE = {&step,      &attend, &best_rows, &linear_columns,
                                        &gate_rows, &relu,   &add_rows,  &normalize_rows};

}  // namespace lightconv
