// LightConv and DynamicConv on CUDA tensors: checks, memory, and what runs on raw pointers.
#include <optional>
#include <string>
#include <tuple>

#include "checks.h"
#include "cuda/compiler.h"
#include "cuda/launch.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

Conv describe(const Tensor& x, const Tensor& weight, int64_t padding_l, bool softmax, double dropconnect,
              const std::optional<Tensor>& seed) {
  const ConvSizes sizes = check_conv(x, weight, padding_l, dropconnect, seed);
  check_same(x, weight, "weight");
  Conv conv{};
  conv.T = sizes.T, conv.B = sizes.B, conv.H = sizes.H, conv.R = sizes.C / sizes.H, conv.K = sizes.K;
  conv.step = is_batch_first(x) ? 1 : sizes.B, conv.sentence = is_batch_first(x) ? sizes.T : 1;
  conv.dynamic = sizes.dynamic, conv.padding_l = padding_l, conv.softmax = softmax;
  conv.dropconnect = probability_of(dropconnect);
  if (dropconnect > 0.0) {
    check_same(x, *seed, "seed");
    conv.seed = static_cast<const long long*>(seed->const_data_ptr());
  }
  conv.type = type_of(x);
  conv.x = x.const_data_ptr(), conv.logits = weight.const_data_ptr();
  return conv;
}

constexpr const char* kNotPacked = "lightconv: packed sentences have kernels on a CPU alone";

Tensor conv(const Tensor& x_any, const Tensor& weight_any, int64_t padding_l, bool softmax, double dropconnect,
            std::optional<Tensor> seed, std::optional<Tensor> offsets) {
  STD_TORCH_CHECK(!offsets.has_value(), kNotPacked);
  const bool batch_first = is_batch_first(x_any);
  const Tensor x = in_order(x_any, batch_first), weight = in_order(weight_any, batch_first);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  Tensor out = empty_in_order(x, batch_first, x.scalar_type());
  if (out.numel() > 0) forward(Memory(x).place(), conv, out.mutable_data_ptr());
  return out;
}

std::tuple<Tensor, Tensor> conv_backward(const Tensor& grad_any, const Tensor& x_any, const Tensor& weight_any,
                                         int64_t padding_l, bool softmax, double dropconnect, std::optional<Tensor> seed,
                                         bool need_x, bool need_weight, std::optional<Tensor> offsets) {
  STD_TORCH_CHECK(!offsets.has_value(), kNotPacked);
  const bool batch_first = is_batch_first(x_any);
  const Tensor x = in_order(x_any, batch_first), weight = in_order(weight_any, batch_first);
  const Tensor grad = in_order(grad_any, batch_first);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  STD_TORCH_CHECK(grad.numel() == x.numel() && grad.scalar_type() == x.scalar_type(),
                  "lightconv: the gradient has another shape or type than x");
  check_same(x, grad, "the gradient");
  Tensor grad_x = need_x ? empty_in_order(x, batch_first, x.scalar_type()) : torch::stable::new_empty(x, {0});
  const ScalarType type = weight_gradient_type(x, weight, softmax);
  Tensor grad_weight = !need_weight       ? torch::stable::new_empty(x, {0})
                       : x.numel() > 0 ? empty_in_order(weight, batch_first, type)
                                       : torch::stable::new_zeros(weight, weight.sizes(), type);
  Memory memory(x);
  if (x.numel() > 0)
    backward(memory.place(), conv, grad.const_data_ptr(), need_x ? grad_x.mutable_data_ptr() : nullptr,
             need_weight ? grad_weight.mutable_data_ptr() : nullptr);
  return {grad_x, grad_weight};
}

Tensor conv_step(const Tensor& x_any, const Tensor& weight_any, Tensor ring, Tensor ancestors, Tensor position,
                 bool softmax) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const StepSizes sizes = check_step(x, weight, ring, ancestors, position);
  check_same(x, weight, "weight");
  check_same(x, ring, "ring");
  check_same(x, ancestors, "ancestors");
  check_same(x, position, "position");
  Case c{};
  c.type = type_of(x), c.dynamic = sizes.dynamic, c.softmax = softmax;
  c.K = static_cast<int>(sizes.K), c.R = static_cast<int>(sizes.C / sizes.H), c.H = static_cast<int>(sizes.H);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  step(Memory(x).place(), c,
       {x.const_data_ptr(), weight.const_data_ptr(), ring.mutable_data_ptr(),
        static_cast<int*>(ancestors.mutable_data_ptr()), static_cast<long long*>(position.mutable_data_ptr()),
        out.mutable_data_ptr(), static_cast<int>(sizes.N), static_cast<int>(sizes.M)});
  return out;
}

void cuda_configure(std::string sources, std::string nvrtc, std::string cache, std::string fingerprint) {
  configure({sources, nvrtc, cache, fingerprint});
}

int64_t cuda_gather(bool begin) { return gather(begin); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CUDA, m) {
  m.impl("light_conv", TORCH_BOX(&conv));
  m.impl("dynamic_conv", TORCH_BOX(&conv));
  m.impl("light_conv_backward", TORCH_BOX(&conv_backward));
  m.impl("dynamic_conv_backward", TORCH_BOX(&conv_backward));
  m.impl("conv_step", TORCH_BOX(&conv_step));
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cuda_configure", TORCH_BOX(&cuda_configure));
  m.impl("cuda_gather", TORCH_BOX(&cuda_gather));
}

}  // namespace lightconv::cuda
