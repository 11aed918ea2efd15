// One decoding step of a causal convolution on a CPU, and the table of its state that beam search re-orders.
#include "checks.h"
#include "cpu/scalar.h"
#include "cpu/step.h"

namespace lightconv {
namespace {

Tensor conv_step(const Tensor& x_any, const Tensor& weight_any, Tensor ring, Tensor ancestors, Tensor position,
                 bool softmax) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const StepSizes sizes = check_step(x, weight, ring, ancestors, position);
  Step step{};
  step.N = sizes.N, step.M = sizes.M, step.C = sizes.C, step.H = sizes.H, step.K = sizes.K;
  step.dynamic = sizes.dynamic, step.softmax = softmax;
  step.type = scalar_of(x);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  step.x = x.const_data_ptr(), step.weight = weight.const_data_ptr(), step.out = out.mutable_data_ptr();
  take_state(step, ring, ancestors, position);
  run(step);
  return out;
}

Tensor reorder_ancestors(const Tensor& ancestors_any, const Tensor& order_any) {
  const Tensor ancestors = torch::stable::contiguous(ancestors_any), order = torch::stable::contiguous(order_any);
  STD_TORCH_CHECK(ancestors.dim() == 2 && ancestors.scalar_type() == ScalarType::Int && order.dim() == 1 &&
                      order.scalar_type() == ScalarType::Long,
                  "reorder_ancestors: expected ancestors (K, N), int32, and order (N',), int64");
  const int64_t slots = ancestors.size(0), before = ancestors.size(1), rows = order.size(0);
  Tensor out = torch::stable::new_empty(ancestors, {slots, rows});
  const auto* from = static_cast<const int32_t*>(ancestors.const_data_ptr());
  const auto* row = static_cast<const int64_t*>(order.const_data_ptr());
  auto* to = static_cast<int32_t*>(out.mutable_data_ptr());
  for (int64_t n = 0; n < rows; ++n)
    STD_TORCH_CHECK(row[n] >= 0 && row[n] < before, "reorder_ancestors: order names a row that there is not");
  for (int64_t k = 0; k < slots; ++k)
    for (int64_t n = 0; n < rows; ++n) to[k * rows + n] = from[k * before + row[n]];
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("conv_step", TORCH_BOX(&conv_step));
  m.impl("reorder_ancestors", TORCH_BOX(&reorder_ancestors));
}

}  // namespace lightconv
