// The CPU kernels, compiled once for each vector width: LIGHTCONV_TABLE names the table, LIGHTCONV_BITS the width.
// Everything is in an unnamed namespace and calls nothing but the compiler's built-ins: code for one width must never
// be linked into another's.
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/kernels.h"
#include "random.h"

namespace lightconv {
namespace {

#include "cpu/bf16.h"
#include "cpu/vector.h"
#include "cpu/weights.h"
#include "cpu/tile.h"
#include "cpu/products.h"
#include "cpu/units.h"
#include "cpu/passes.h"
#include "cpu/peak.h"

Units units(const Conv& conv, bool backward) {
  return conv.type == Scalar::f64 ? units_of<double>(conv, backward) : units_of<float>(conv, backward);
}

void forward(const Conv& conv, const Units& units, void* out, void* scratch, int64_t begin, int64_t end) {
  switch (conv.type) {
    case Scalar::f32: return forward_units<float>(conv, units, out, scratch, begin, end);
    case Scalar::f64: return forward_units<double>(conv, units, out, scratch, begin, end);
    case Scalar::bf16: return forward_units<Bf16>(conv, units, out, scratch, begin, end);
  }
}

void backward(const Conv& conv, const Units& units, const Gradients& gradients, void* scratch, int64_t begin,
              int64_t end) {
  switch (conv.type) {
    case Scalar::f32: return backward_units<float>(conv, units, gradients, scratch, begin, end);
    case Scalar::f64: return backward_units<double>(conv, units, gradients, scratch, begin, end);
    case Scalar::bf16: return backward_units<Bf16>(conv, units, gradients, scratch, begin, end);
  }
}

}  // namespace

const Kernels LIGHTCONV_TABLE = {LIGHTCONV_BITS, &units, &forward, &backward, &fma_loop};

}  // namespace lightconv
