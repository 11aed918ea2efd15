// The operators as torch sees them: schemas, checks, and the choice of the kernels by vector width.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <atomic>
#include <optional>
#include <tuple>

#include "cpu/kernels.h"

namespace lightconv {
namespace {

using torch::stable::Tensor;
using torch::headeronly::ScalarType;

const Kernels& widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return avx512_kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels;
#endif
  return baseline_kernels;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* table = chosen.load();
  if (table == nullptr) chosen.store(table = &widest());
  return *table;
}

namespace {

// Bits of a vector register that the kernels use; bits > 0 asks for kernels of at most that width, for tests and timing.
int64_t cpu_vector_bits(int64_t bits) {
  if (bits > 0) {
    const Kernels* table = &widest();
#if defined(__x86_64__)
    if (bits < table->vector_bits && bits >= avx2_kernels.vector_bits) table = &avx2_kernels;
    if (bits < avx2_kernels.vector_bits) table = &baseline_kernels;
#endif
    chosen.store(table);
  }
  return kernels().vector_bits;
}

Scalar scalar_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Scalar::f32;
    case ScalarType::Double: return Scalar::f64;
    case ScalarType::BFloat16: return Scalar::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float64 or bfloat16 on a CPU");
  }
}

Conv describe(const Tensor& x, const Tensor& weight, int64_t padding_l, bool softmax, double dropconnect,
              const std::optional<Tensor>& seed) {
  STD_TORCH_CHECK(x.dim() == 3 && (weight.dim() == 2 || weight.dim() == 4),
                  "lightconv: expected x (T, B, C) and weight (H, K) or (T, B, H, K)");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "lightconv: x and weight differ in type");
  Conv conv{};
  conv.T = x.size(0), conv.B = x.size(1), conv.C = x.size(2);
  conv.dynamic = weight.dim() == 4;
  conv.H = weight.size(conv.dynamic ? 2 : 0), conv.K = weight.size(conv.dynamic ? 3 : 1);
  STD_TORCH_CHECK(!conv.dynamic || (weight.size(0) == conv.T && weight.size(1) == conv.B),
                  "lightconv: weight (T, B, H, K) has another T or B than x");
  STD_TORCH_CHECK(conv.H > 0 && conv.C % conv.H == 0, "lightconv: the heads do not divide the channels");
  STD_TORCH_CHECK(padding_l >= 0 && padding_l < conv.K, "lightconv: padding_l is outside 0..K-1");
  STD_TORCH_CHECK(dropconnect >= 0.0 && dropconnect < 1.0, "lightconv: dropconnect is outside [0, 1)");
  conv.padding_l = padding_l, conv.softmax = softmax;
  conv.dropconnect = static_cast<float>(dropconnect);
  if (dropconnect > 0.0) {
    STD_TORCH_CHECK(seed.has_value() && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long,
                    "lightconv: DropConnect needs a seed, one int64");
    conv.seed = static_cast<uint64_t>(*static_cast<const int64_t*>(seed->const_data_ptr()));
  }
  conv.type = scalar_of(x);
  conv.x = x.const_data_ptr(), conv.weight = weight.const_data_ptr();
  return conv;
}

Tensor forward(const Tensor& x_any, const Tensor& weight_any, int64_t padding_l, bool softmax, double dropconnect,
               std::optional<Tensor> seed) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  if (out.numel() > 0) kernels().forward(conv, out.mutable_data_ptr());
  return out;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_any, const Tensor& x_any, const Tensor& weight_any,
                                    int64_t padding_l, bool softmax, double dropconnect, std::optional<Tensor> seed,
                                    bool need_x, bool need_weight) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const Tensor grad = torch::stable::contiguous(grad_any);
  const Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed);
  STD_TORCH_CHECK(grad.numel() == x.numel() && grad.scalar_type() == x.scalar_type(),
                  "lightconv: the gradient has another shape or type than x");
  const Tensor none = torch::stable::new_empty(x, {0});
  Tensor grad_x = need_x ? torch::stable::new_empty(x, x.sizes()) : none;
  Tensor grad_weight = need_weight ? torch::stable::new_zeros(weight, weight.sizes()) : none;
  if (x.numel() > 0)
    kernels().backward(conv, grad.const_data_ptr(), need_x ? grad_x.mutable_data_ptr() : nullptr,
                       need_weight ? grad_weight.mutable_data_ptr() : nullptr);
  return {grad_x, grad_weight};
}

}  // namespace

STABLE_TORCH_LIBRARY(lightconv, m) {
  for (const char* schema : {
           "light_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed) -> Tensor",
           "dynamic_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed) -> Tensor",
           "light_conv_backward(Tensor grad, Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, "
           "Tensor? seed, bool need_x, bool need_weight) -> (Tensor, Tensor)",
           "dynamic_conv_backward(Tensor grad, Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, "
           "Tensor? seed, bool need_x, bool need_weight) -> (Tensor, Tensor)",
           "conv_step(Tensor x, Tensor weight, Tensor(a!) ring, Tensor(b!) ancestors, Tensor(c!) position, bool softmax) "
           "-> Tensor",
           "reorder_ancestors(Tensor ancestors, Tensor order) -> Tensor",
           "cpu_vector_bits(int bits) -> int",
       })
    m.def(schema);
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("light_conv", TORCH_BOX(&forward));
  m.impl("dynamic_conv", TORCH_BOX(&forward));
  m.impl("light_conv_backward", TORCH_BOX(&backward));
  m.impl("dynamic_conv_backward", TORCH_BOX(&backward));
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cpu_vector_bits", TORCH_BOX(&cpu_vector_bits));
}

}  // namespace lightconv
