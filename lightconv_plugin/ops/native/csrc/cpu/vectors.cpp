// The CPU kernels, compiled once for each vector width: LIGHTCONV_TABLE names the table, LIGHTCONV_BITS the width.
// All .inl files are included in the unnamed namespace of this file, and call only the compiler's built-ins and
// <cmath>: code for one width must never be linked into code for another.
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/kernels.h"
#include "random.h"

namespace lightconv {
namespace {

#include "cpu/types.inl"
#include "cpu/vector.inl"
#include "cpu/units.inl"
#include "cpu/weights.inl"
#include "cpu/heads.inl"
#include "cpu/forward.inl"
#include "cpu/backward.inl"
#include "cpu/step.inl"
#include "cpu/fused/decode.inl"
#include "cpu/fused/linear.inl"
#include "cpu/fused/train.inl"

}  // namespace

const Kernels LIGHTCONV_TABLE = {
    .vector_bits = LIGHTCONV_BITS,
    .units = [](const Conv& conv, bool backward) {
      return conv.type == Scalar::f64 ? units_of<double>(conv, backward) : units_of<float>(conv, backward);
    },
    .forward = [](const Conv& conv, const Units& units, void* out, void* scratch, int64_t begin, int64_t end) {
      by_type(conv.type, [&]<class S>(S) { forward_units<S>(conv, units, out, scratch, begin, end); });
    },
    .backward = [](const Conv& conv, const Units& units, const Gradients& to, void* scratch, int64_t begin, int64_t end) {
      by_type(conv.type, [&]<class S>(S) { backward_units<S>(conv, units, to, scratch, begin, end); });
    },
    .step = [](const Step& s, void* scratch, int64_t begin, int64_t end) {
      by_type(s.type, [&]<class S>(S) { step_rows<S>(s, scratch, begin, end); });
    },
    .dropout = [](const Dropout& d, int64_t begin, int64_t end) {
      by_type(d.type, [&]<class S>(S) { dropout_groups<S>(d, begin, end); });
    },
    .loss_rows = [](const LossTask& task, double* rows, int64_t begin, int64_t end) {
      by_type(task.type, [&]<class S>(S) { loss_rows<S>(task, rows, begin, end); });
    },
    .loss_gradient = [](const LossTask& task, const LossGradient& to, int64_t begin, int64_t end) {
      by_type(task.type, [&]<class S>(S) { loss_gradient<S>(task, to, begin, end); });
    },
    .attend = [](const Attention& a, void* scratch, int64_t begin, int64_t end) {
      by_type(a.type, [&]<class S>(S) { attend_rows<S>(a, scratch, begin, end); });
    },
    .best = &best_rows,
    .linear = &linear_columns,
    .linear_packed = &linear_packed,
    .gate = &gate_rows,
    .normalize = &normalize_rows,
};

}  // namespace lightconv
