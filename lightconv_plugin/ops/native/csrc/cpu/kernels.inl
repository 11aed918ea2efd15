// The CPU kernels, compiled once for each vector width: LIGHTCONV_TABLE names the table, LIGHTCONV_BITS the width.
// All .inl files are parts of such an unnamed namespace, and call nothing but the compiler's built-ins: code for one
// width must never be linked into another's.
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/kernels.h"
#include "random.h"

namespace lightconv {
namespace {

#include "cpu/types.inl"
#include "cpu/vector.inl"
#include "cpu/random.inl"
#include "cpu/weights.inl"
#include "cpu/tile.inl"
#include "cpu/products.inl"
#include "cpu/units.inl"
#include "cpu/narrow.inl"
#include "cpu/passes.inl"
#include "cpu/numbers.inl"
#include "cpu/step.inl"

Units units(const Conv& conv, bool backward) {
  return conv.type == Scalar::f64 ? units_of<double>(conv, backward) : units_of<float>(conv, backward);
}

void forward(const Conv& conv, const Units& units, void* out, void* scratch, int64_t begin, int64_t end) {
  by_type(conv.type, [&]<class S>(S) { forward_units<S>(conv, units, out, scratch, begin, end); });
}

void backward(const Conv& conv, const Units& units, const Gradients& gradients, void* scratch, int64_t begin,
              int64_t end) {
  by_type(conv.type, [&]<class S>(S) { backward_units<S>(conv, units, gradients, scratch, begin, end); });
}

void step(const Step& s, void* scratch, int64_t begin, int64_t end) {
  by_type(s.type, [&]<class S>(S) { step_rows<S>(s, scratch, begin, end); });
}

}  // namespace

const Kernels LIGHTCONV_TABLE = {LIGHTCONV_BITS, &units, &forward, &backward, &step};

}  // namespace lightconv
