// What the loss and attention ask of their arguments, in the same words on CPUs and GPUs.
#pragma once

#include <cstdint>
#include <optional>

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

// What N queries of C channels attend to: keys and values (sentences, S, C), padding (sentences, S), sentence (N,).
inline void check_attention(const Tensor& keys, const Tensor& values, const std::optional<Tensor>& padding,
                            const Tensor& sentence, int64_t N, int64_t C, int64_t heads, ScalarType type) {
  STD_TORCH_CHECK(keys.dim() == 3 && values.dim() == 3, "attend: expected keys and values (sentences, S, C)");
  const int64_t sentences = keys.size(0), S = keys.size(1);
  STD_TORCH_CHECK(heads > 0 && C % heads == 0, "attend: the heads do not divide the channels");
  STD_TORCH_CHECK(keys.size(2) == C && values.size(0) == sentences && values.size(1) == S && values.size(2) == C,
                  "attend: query, keys and values differ in shape");
  STD_TORCH_CHECK(keys.scalar_type() == type && values.scalar_type() == type,
                  "attend: query, keys and values differ in type");
  STD_TORCH_CHECK(!padding.has_value() || (padding->scalar_type() == ScalarType::Bool && padding->dim() == 2 &&
                                           padding->size(0) == sentences && padding->size(1) == S),
                  "attend: expected padding (sentences, S), bool");
  STD_TORCH_CHECK(sentence.scalar_type() == ScalarType::Long && sentence.dim() == 1 && sentence.size(0) == N,
                  "attend: expected sentence (N,), int64");
  STD_TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && sentence.is_contiguous() &&
                      (!padding.has_value() || padding->is_contiguous()),
                  "attend: the state is not contiguous");
}

}  // namespace lightconv
