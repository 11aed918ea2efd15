// The operators of CUDA tensors as torch sees them: checks, memory, the current stream, and errors.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cuda/compiler.h"
#include "cuda/launch.h"

namespace lightconv::cuda {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The stream that torch's caller works on. The function is in torch's CUDA library, which a CPU build of torch lacks.
void* current_stream(int device) {
  using Function = int32_t (*)(int32_t, void**);
  static const Function function = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
    return reinterpret_cast<Function>(symbol);
  }();
  STD_TORCH_CHECK(function != nullptr, "lightconv: this torch has no aoti_torch_get_current_cuda_stream; "
                                       "a CUDA build of torch 2.10 or later is expected");
  void* stream = nullptr;
  STD_TORCH_CHECK(function(device, &stream) == 0, "lightconv: torch does not say which CUDA stream is current");
  return stream;
}

// Scratch as torch's own tensors, so that its allocator sees it, in captured graphs too; lives as long as this.
class Memory {
 public:
  explicit Memory(const Tensor& like) : like_(like) {}
  Place place() {
    const int device = like_.get_device_index();
    return {device, current_stream(device), [this](size_t bytes) {
              kept_.push_back(torch::stable::new_empty(like_, {static_cast<int64_t>(bytes)}, ScalarType::Byte));
              return kept_.back().mutable_data_ptr();
            }};
  }

 private:
  const Tensor& like_;
  std::vector<Tensor> kept_;
};

Type type_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Type::f32;
    case ScalarType::Double: return Type::f64;
    case ScalarType::Half: return Type::f16;
    case ScalarType::BFloat16: return Type::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float16, bfloat16 or float64 on a GPU");
  }
}

void check_same(const Tensor& x, const Tensor& other, const char* name) {
  STD_TORCH_CHECK(other.is_cuda() && other.get_device_index() == x.get_device_index(), "lightconv: ", name,
                  " is not on x's device");
}

Conv describe(const Tensor& x, const Tensor& weight, int64_t padding_l, bool softmax, double dropconnect,
              const std::optional<Tensor>& seed) {
  const ConvSizes sizes = check_conv(x, weight, padding_l, dropconnect, seed);
  check_same(x, weight, "weight");
  Conv conv{};
  conv.T = sizes.T, conv.B = sizes.B, conv.H = sizes.H, conv.R = sizes.C / sizes.H, conv.K = sizes.K;
  conv.dynamic = sizes.dynamic, conv.padding_l = padding_l, conv.softmax = softmax, conv.dropconnect = dropconnect;
  if (dropconnect > 0.0) {
    check_same(x, *seed, "seed");
    conv.seed = static_cast<const long long*>(seed->const_data_ptr());
  }
  conv.type = type_of(x);
  conv.x = x.const_data_ptr(), conv.logits = weight.const_data_ptr();
  return conv;
}

Tensor conv(const Tensor& x_any, const Tensor& weight_any, int64_t padding_l, bool softmax, double dropconnect,
            std::optional<Tensor> seed) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  if (out.numel() > 0) forward(Memory(x).place(), conv, out.mutable_data_ptr());
  return out;
}

std::tuple<Tensor, Tensor> conv_backward(const Tensor& grad_any, const Tensor& x_any, const Tensor& weight_any,
                                         int64_t padding_l, bool softmax, double dropconnect, std::optional<Tensor> seed,
                                         bool need_x, bool need_weight) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const Tensor grad = torch::stable::contiguous(grad_any);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  STD_TORCH_CHECK(grad.numel() == x.numel() && grad.scalar_type() == x.scalar_type(),
                  "lightconv: the gradient has another shape or type than x");
  check_same(x, grad, "the gradient");
  Tensor grad_x = need_x ? torch::stable::new_empty(x, x.sizes()) : torch::stable::new_empty(x, {0});
  Tensor grad_weight = !need_weight       ? torch::stable::new_empty(x, {0})
                       : x.numel() > 0 ? torch::stable::new_empty(weight, weight.sizes())
                                       : torch::stable::new_zeros(weight, weight.sizes());
  Memory memory(x);
  if (x.numel() > 0)
    backward(memory.place(), conv, grad.const_data_ptr(), need_x ? grad_x.mutable_data_ptr() : nullptr,
             need_weight ? grad_weight.mutable_data_ptr() : nullptr);
  return {grad_x, grad_weight};
}

const bool* mask_of(const std::optional<Tensor>& mask, const Tensor& x) {
  if (!mask.has_value()) return nullptr;
  STD_TORCH_CHECK(mask->dim() == 2 && mask->size(0) == x.size(1) && mask->size(1) == x.size(0) &&
                      mask->scalar_type() == ScalarType::Bool,
                  "glu_mask: expected padding_mask (B, T), bool, with the B and T of x (T, B, 2C)");
  check_same(x, *mask, "padding_mask");
  return static_cast<const bool*>(mask->const_data_ptr());
}

std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? std::optional<Tensor>(torch::stable::contiguous(*tensor)) : std::nullopt;
}

Tensor glu_mask(const Tensor& x_any, std::optional<Tensor> mask_any) {
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(2) % 2 == 0, "glu_mask: expected x (T, B, 2C)");
  const std::optional<Tensor> mask = contiguous(mask_any);
  const bool* masked = mask_of(mask, x);
  Tensor out = torch::stable::new_empty(x, {x.size(0), x.size(1), x.size(2) / 2});
  if (out.numel() > 0)
    glu(Memory(x).place(), type_of(x), x.size(0), x.size(1), x.size(2) / 2, x.const_data_ptr(), masked,
        out.mutable_data_ptr());
  return out;
}

Tensor glu_mask_backward(const Tensor& grad_any, const Tensor& x_any, std::optional<Tensor> mask_any) {
  const Tensor x = torch::stable::contiguous(x_any), grad = torch::stable::contiguous(grad_any);
  const std::optional<Tensor> mask = contiguous(mask_any);
  const bool* masked = mask_of(mask, x);
  STD_TORCH_CHECK(grad.numel() * 2 == x.numel() && grad.scalar_type() == x.scalar_type(),
                  "glu_mask: the gradient has another shape or type than the output");
  check_same(x, grad, "the gradient");
  Tensor out = torch::stable::new_empty(x, x.sizes());
  if (out.numel() > 0)
    glu_backward(Memory(x).place(), type_of(x), x.size(0), x.size(1), x.size(2) / 2, grad.const_data_ptr(),
                 x.const_data_ptr(), masked, out.mutable_data_ptr());
  return out;
}

Tensor conv_step(const Tensor& x_any, const Tensor& weight_any, Tensor ring, Tensor ancestors, Tensor position,
                 bool softmax) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const StepSizes sizes = check_step(x, weight, ring, ancestors, position);
  check_same(x, weight, "weight");
  check_same(x, ring, "ring");
  check_same(x, ancestors, "ancestors");
  check_same(x, position, "position");
  Step s{};
  s.N = s.A = sizes.N, s.M = sizes.M, s.H = sizes.H, s.R = sizes.C / sizes.H, s.K = sizes.K;
  s.dynamic = sizes.dynamic, s.softmax = softmax, s.type = type_of(x);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  s.x = x.const_data_ptr(), s.logits = weight.const_data_ptr(), s.ring = ring.mutable_data_ptr();
  s.ancestors = static_cast<int*>(ancestors.mutable_data_ptr());
  s.position = static_cast<long long*>(position.mutable_data_ptr()), s.out = out.mutable_data_ptr();
  step(Memory(x).place(), s);
  return out;
}

// Rows that follow each other with any stride are read where they are; all else is copied first.
Tensor with_dense_rows(const Tensor& logits) {
  const bool dense = logits.dim() == 2 && logits.stride(1) == 1;
  return dense ? logits : torch::stable::contiguous(logits);
}

Rows describe(const Tensor& logits, const Tensor& target, int64_t ignore) {
  check_loss(logits, target);
  check_same(logits, target, "target");
  return {logits.size(0), logits.size(1), logits.stride(0), ignore, type_of(logits), logits.const_data_ptr(),
          static_cast<const long long*>(target.const_data_ptr())};
}

std::tuple<Tensor, Tensor> smoothed_nll(const Tensor& logits_any, const Tensor& target_any, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  const Rows rows = describe(logits, target, ignore);
  Tensor sums = torch::stable::new_empty(logits, {2}, ScalarType::Double);
  Tensor log_sums = torch::stable::new_empty(logits, {rows.N}, ScalarType::Double);
  loss(Memory(logits).place(), rows, static_cast<double*>(log_sums.mutable_data_ptr()),
       static_cast<double*>(sums.mutable_data_ptr()));
  return {sums, log_sums};
}

Tensor smoothed_nll_backward(const Tensor& grad, const Tensor& logits_any, const Tensor& target_any,
                             const Tensor& log_sums_any, double nll_share, double all_share, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  const Tensor log_sums = torch::stable::contiguous(log_sums_any);
  const Rows rows = describe(logits, target, ignore);
  check_loss_gradient(grad, logits, log_sums);
  check_same(logits, grad, "the gradient");
  check_same(logits, log_sums, "log_sums");
  Tensor out = torch::stable::new_empty(logits, logits.sizes());
  loss_backward(Memory(logits).place(), rows, grad.const_data_ptr(), static_cast<const double*>(log_sums.const_data_ptr()),
                nll_share, all_share, out.mutable_data_ptr());
  return out;
}

void cuda_configure(std::string sources, std::string includes, std::string nvrtc, std::string cache,
                    std::string fingerprint) {
  configure({sources, includes, nvrtc, cache, fingerprint});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lightconv, m) {
  m.def("glu_mask(Tensor x, Tensor? padding_mask) -> Tensor");
  m.def("glu_mask_backward(Tensor grad, Tensor x, Tensor? padding_mask) -> Tensor");
  m.def("cuda_configure(str sources, str includes, str nvrtc, str cache, str fingerprint) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CUDA, m) {
  m.impl("light_conv", TORCH_BOX(&conv));
  m.impl("dynamic_conv", TORCH_BOX(&conv));
  m.impl("light_conv_backward", TORCH_BOX(&conv_backward));
  m.impl("dynamic_conv_backward", TORCH_BOX(&conv_backward));
  m.impl("glu_mask", TORCH_BOX(&glu_mask));
  m.impl("glu_mask_backward", TORCH_BOX(&glu_mask_backward));
  m.impl("conv_step", TORCH_BOX(&conv_step));
  m.impl("smoothed_nll", TORCH_BOX(&smoothed_nll));
  m.impl("smoothed_nll_backward", TORCH_BOX(&smoothed_nll_backward));
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cuda_configure", TORCH_BOX(&cuda_configure));
}

}  // namespace lightconv::cuda
