// The kernels of the operators beside the paper's, compiled once for each vector width, as cpu/kernels.inl has it.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cpu/auxiliary/kernels.h"
#include "random.h"

namespace lightconv {
namespace {

#include "cpu/types.inl"
#include "cpu/vector.inl"
#include "cpu/random.inl"
#include "cpu/numbers.inl"
#include "cpu/auxiliary/attention.inl"
#include "cpu/auxiliary/block.inl"
#include "cpu/auxiliary/dropout.inl"
#include "cpu/auxiliary/linear.inl"
#include "cpu/auxiliary/loss.inl"
#include "cpu/auxiliary/peak.inl"
#include "cpu/auxiliary/search.inl"

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

void attend(const Attention& a, void* scratch, int64_t begin, int64_t end) {
  by_type(a.type, [&]<class S>(S) { attend_rows<S>(a, scratch, begin, end); });
}

}  // namespace

const AuxiliaryKernels LIGHTCONV_TABLE = {
    &dropout,   &loss_rows, &loss_gradient, &attend,         &best_rows, &linear_columns,
    &gate_rows, &relu,      &add_rows,      &normalize_rows, &fma_loop};

}  // namespace lightconv
