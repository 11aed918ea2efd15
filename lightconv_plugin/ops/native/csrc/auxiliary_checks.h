// What the loss asks of its arguments, in the same words on CPUs and GPUs.
#pragma once

#include "tensor.h"

namespace lightconv {

// Rows of logits (N, V) and their targets (N,).
inline void check_loss(const Tensor& logits, const Tensor& target) {
  STD_TORCH_CHECK(logits.dim() == 2 && target.dim() == 1 && target.size(0) == logits.size(0) &&
                      target.scalar_type() == ScalarType::Long,
                  "smoothed_nll: expected logits (N, V) and target (N,), int64");
}

// What the gradient of the loss comes from: one number of the loss's type, and log_sums (N,).
inline void check_loss_gradient(const Tensor& grad, const Tensor& logits, const Tensor& log_sums) {
  const ScalarType type = logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  STD_TORCH_CHECK(grad.numel() == 1 && grad.scalar_type() == type,
                  "smoothed_nll_backward: expected one number for a gradient, float64 for logits of float64, else float32");
  STD_TORCH_CHECK(log_sums.dim() == 1 && log_sums.size(0) == logits.size(0) && log_sums.scalar_type() == ScalarType::Double,
                  "smoothed_nll_backward: expected log_sums (N,), float64");
}

}  // namespace lightconv
