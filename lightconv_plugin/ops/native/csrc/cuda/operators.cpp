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
  STD_TORCH_CHECK(x.dim() == 3 && (weight.dim() == 2 || weight.dim() == 4),
                  "lightconv: expected x (T, B, C) and weight (H, K) or (T, B, H, K)");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "lightconv: x and weight differ in type");
  check_same(x, weight, "weight");
  Conv conv{};
  conv.T = x.size(0), conv.B = x.size(1), conv.padding_l = padding_l;
  conv.dynamic = weight.dim() == 4, conv.softmax = softmax, conv.dropconnect = dropconnect;
  conv.H = weight.size(conv.dynamic ? 2 : 0), conv.K = weight.size(conv.dynamic ? 3 : 1);
  STD_TORCH_CHECK(!conv.dynamic || (weight.size(0) == conv.T && weight.size(1) == conv.B),
                  "lightconv: weight (T, B, H, K) has another T or B than x");
  STD_TORCH_CHECK(conv.H > 0 && x.size(2) % conv.H == 0, "lightconv: the heads do not divide the channels");
  STD_TORCH_CHECK(padding_l >= 0 && padding_l < conv.K, "lightconv: padding_l is outside 0..K-1");
  STD_TORCH_CHECK(dropconnect >= 0.0 && dropconnect < 1.0, "lightconv: dropconnect is outside [0, 1)");
  conv.R = x.size(2) / conv.H;
  if (dropconnect > 0.0) {
    STD_TORCH_CHECK(seed.has_value() && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long,
                    "lightconv: DropConnect needs a seed, one int64");
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
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && (weight.dim() == 2 || weight.dim() == 4),
                  "conv_step: expected x (1, N, C) and weight (H, K) or (1, N, H, K)");
  Step s{};
  s.N = x.size(1), s.dynamic = weight.dim() == 4, s.softmax = softmax;
  s.H = weight.size(s.dynamic ? 2 : 0), s.K = weight.size(s.dynamic ? 3 : 1);
  STD_TORCH_CHECK(!s.dynamic || (weight.size(0) == 1 && weight.size(1) == s.N),
                  "conv_step: weight (1, N, H, K) has other rows than x (1, N, C)");
  STD_TORCH_CHECK(s.K > 0 && s.H > 0 && x.size(2) % s.H == 0, "conv_step: the heads do not divide the channels");
  STD_TORCH_CHECK(ring.dim() == 3 && ring.size(0) == s.K && ring.size(1) >= s.N && ring.size(2) == x.size(2),
                  "conv_step: expected ring (K, M, C) with the K and C of weight and x, and M >= N rows");
  STD_TORCH_CHECK(ancestors.dim() == 2 && ancestors.size(0) == s.K && ancestors.size(1) == s.N &&
                      ancestors.scalar_type() == ScalarType::Int,
                  "conv_step: expected ancestors (K, N), int32");
  STD_TORCH_CHECK(position.numel() == 1 && position.scalar_type() == ScalarType::Long,
                  "conv_step: expected position (1,), int64");
  STD_TORCH_CHECK(x.scalar_type() == weight.scalar_type() && x.scalar_type() == ring.scalar_type(),
                  "conv_step: x, weight and ring differ in type");
  STD_TORCH_CHECK(ring.is_contiguous() && ancestors.is_contiguous(), "conv_step: the state is not contiguous");
  check_same(x, weight, "weight");
  check_same(x, ring, "ring");
  check_same(x, ancestors, "ancestors");
  check_same(x, position, "position");
  s.M = ring.size(1), s.A = s.N, s.R = x.size(2) / s.H, s.type = type_of(x);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  s.x = x.const_data_ptr(), s.logits = weight.const_data_ptr(), s.ring = ring.mutable_data_ptr();
  s.ancestors = static_cast<int*>(ancestors.mutable_data_ptr());
  s.position = static_cast<long long*>(position.mutable_data_ptr()), s.out = out.mutable_data_ptr();
  step(Memory(x).place(), s);
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
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cuda_configure", TORCH_BOX(&cuda_configure));
}

}  // namespace lightconv::cuda
