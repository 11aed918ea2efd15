// The types of tensors that the CPU kernels take.
#pragma once

#include "cpu/kernels.h"
#include "tensor.h"

namespace lightconv {

inline Scalar scalar_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Scalar::f32;
    case ScalarType::Double: return Scalar::f64;
    case ScalarType::BFloat16: return Scalar::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float64 or bfloat16 on a CPU");
  }
}

}  // namespace lightconv
