// One decoding step of a causal convolution on a CPU.
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

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) { m.impl("conv_step", TORCH_BOX(&conv_step)); }

}  // namespace lightconv
