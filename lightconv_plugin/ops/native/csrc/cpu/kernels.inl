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
#include "cpu/loss.h"
#include "cpu/mask.h"
#include "cpu/peak.h"

Units units(const Conv& conv, bool backward) {
  return conv.type == Scalar::f64 ? units_of<double>(conv, backward) : units_of<float>(conv, backward);
}

// Calls as(S{}) for the type S of the numbers in memory.
template <class As>
void by_type(Scalar type, As as) {
  switch (type) {
    case Scalar::f32: return as(float{});
    case Scalar::f64: return as(double{});
    case Scalar::bf16: return as(Bf16{});
  }
}

void forward(const Conv& conv, const Units& units, void* out, void* scratch, int64_t begin, int64_t end) {
  by_type(conv.type, [&]<class S>(S) { forward_units<S>(conv, units, out, scratch, begin, end); });
}

void backward(const Conv& conv, const Units& units, const Gradients& gradients, void* scratch, int64_t begin,
              int64_t end) {
  by_type(conv.type, [&]<class S>(S) { backward_units<S>(conv, units, gradients, scratch, begin, end); });
}

void dropout(Scalar type, const void* x, void* y, int64_t count, float probability, uint64_t seed, int64_t begin,
             int64_t end) {
  by_type(type, [&]<class S>(S) {
    dropout_groups(static_cast<const S*>(x), static_cast<S*>(y), count, probability, seed, begin, end);
  });
}

void loss_rows(const LossTask& task, double* rows, int64_t begin, int64_t end) {
  by_type(task.type, [&]<class S>(S) { loss_rows_of<S>(task, rows, begin, end); });
}

void loss_gradient(const LossTask& task, const double* log_sums, double scale, double share, double extra,
                   void* gradient, int64_t begin, int64_t end) {
  by_type(task.type, [&]<class S>(S) {
    loss_gradient_of<S>(task, log_sums, scale, share, extra, gradient, begin, end);
  });
}

}  // namespace

const Kernels LIGHTCONV_TABLE = {LIGHTCONV_BITS, &units,     &forward,       &backward,
                                 &dropout,       &loss_rows, &loss_gradient, &fma_loop};

}  // namespace lightconv
