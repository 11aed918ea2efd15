// Dropout on a CPU. The gradient of it is itself, with the same seed.
#include "checks.h"
#include "cpu/auxiliary/kernels.h"
#include "cpu/scalar.h"

namespace lightconv {
namespace {

constexpr int64_t kGrain = 512;  // groups of 64 numbers that pay for waking a thread

Tensor dropout(const Tensor& x_any, double p, const Tensor& seed) {
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(p >= 0.0 && p < 1.0, "dropout: p is outside [0, 1)");
  STD_TORCH_CHECK(seed.numel() == 1 && seed.scalar_type() == ScalarType::Long,
                  "dropout: expected a seed, one int64");
  const Scalar type = scalar_of(x);
  const uint64_t number = static_cast<uint64_t>(*static_cast<const int64_t*>(seed.const_data_ptr()));
  Tensor out = torch::stable::new_empty(x, x.sizes());
  const int64_t count = x.numel();
  const void* from = x.const_data_ptr();
  void* to = out.mutable_data_ptr();
  const AuxiliaryKernels& table = auxiliary_kernels();
  torch::stable::parallel_for(0, (count + 63) / 64, kGrain, [&](int64_t begin, int64_t end) {
    table.dropout(type, from, to, count, probability_of(p), number, begin, end);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) { m.impl("dropout", TORCH_BOX(&dropout)); }

}  // namespace lightconv
