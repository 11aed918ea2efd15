// The types of tensors that the CPU kernels take.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "cpu/kernels.h"

namespace lightconv {

inline Scalar scalar_of(const torch::stable::Tensor& x) {
  using torch::headeronly::ScalarType;
  switch (x.scalar_type()) {
    case ScalarType::Float: return Scalar::f32;
    case ScalarType::Double: return Scalar::f64;
    case ScalarType::BFloat16: return Scalar::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float64 or bfloat16 on a CPU");
  }
}

}  // namespace lightconv
