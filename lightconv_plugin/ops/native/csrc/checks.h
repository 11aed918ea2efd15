// What the operators ask of their arguments, in the same words on CPUs and GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "tensor.h"

namespace lightconv {

// A probability of dropping as the kernels have it: in float32, and less than 1 there too.
inline float probability_of(double p) { return std::min(static_cast<float>(p), 0x1.fffffep-1f); }

// Sizes of a convolution: x (T, B, C), weight (H, K) or, dynamic, (T, B, H, K).
struct ConvSizes {
  int64_t T, B, C, H, K;
  bool dynamic;
};

inline ConvSizes check_conv(const Tensor& x, const Tensor& weight, int64_t padding_l, double dropconnect,
                            const std::optional<Tensor>& seed) {
  STD_TORCH_CHECK(x.dim() == 3 && (weight.dim() == 2 || weight.dim() == 4),
                  "lightconv: expected x (T, B, C) and weight (H, K) or (T, B, H, K)");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "lightconv: x and weight differ in type");
  const bool dynamic = weight.dim() == 4;
  const ConvSizes sizes{x.size(0), x.size(1), x.size(2), weight.size(dynamic ? 2 : 0), weight.size(dynamic ? 3 : 1),
                        dynamic};
  STD_TORCH_CHECK(!dynamic || (weight.size(0) == sizes.T && weight.size(1) == sizes.B),
                  "lightconv: weight (T, B, H, K) has another T or B than x");
  STD_TORCH_CHECK(sizes.H > 0 && sizes.C % sizes.H == 0, "lightconv: the heads do not divide the channels");
  STD_TORCH_CHECK(padding_l >= 0 && padding_l < sizes.K, "lightconv: padding_l is outside 0..K-1");
  STD_TORCH_CHECK(dropconnect >= 0.0 && dropconnect < 1.0, "lightconv: dropconnect is outside [0, 1)");
  STD_TORCH_CHECK(dropconnect == 0.0 ||
                      (seed.has_value() && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long),
                  "lightconv: DropConnect needs a seed, one int64");
  return sizes;
}

// Does x (T, B, C) lie as (B, T, C)? Its kernels and its gradient are read, and the results written, in the same order.
inline bool is_batch_first(const Tensor& x) {
  return x.dim() == 3 && !x.is_contiguous() && torch::stable::transpose(x, 0, 1).is_contiguous();
}

// A tensor (T, B, ..) with its rows one behind another in that order, or LightConv's weight.
inline Tensor in_order(const Tensor& given, bool batch_first) {
  if (!batch_first || given.dim() < 3) return torch::stable::contiguous(given);
  return torch::stable::transpose(torch::stable::contiguous(torch::stable::transpose(given, 0, 1)), 0, 1);
}

// Room for a result of the shape of `like`, in that order.
inline Tensor empty_in_order(const Tensor& like, bool batch_first, ScalarType type) {
  if (!batch_first || like.dim() < 3) return torch::stable::new_empty(like, like.sizes(), type);
  const Tensor turned = torch::stable::transpose(like, 0, 1);
  return torch::stable::transpose(torch::stable::new_empty(turned, turned.sizes(), type), 0, 1);
}

// The type of a gradient of weights. LightConv's is a sum over all positions: of 16-bit numbers it stays in float32 where
// a normalisation's derivative follows, in which its large parts cancel.
inline ScalarType weight_gradient_type(const Tensor& x, const Tensor& weight, bool softmax) {
  const ScalarType type = x.scalar_type();
  return weight.dim() == 4 || softmax || type == ScalarType::Double ? type : ScalarType::Float;
}

// A decoder's past inputs: ring (K, M, C), ancestors (K, N), position (1,). Gives M.
inline int64_t check_ring(const Tensor& ring, const Tensor& ancestors, const Tensor& position, int64_t N, int64_t C,
                          int64_t K, ScalarType type) {
  STD_TORCH_CHECK(ring.dim() == 3 && ancestors.dim() == 2, "conv_step: expected ring (K, M, C) and ancestors (K, N)");
  STD_TORCH_CHECK(ring.size(0) == K && ring.size(1) >= N && ring.size(2) == C,
                  "conv_step: expected ring (K, M, C) with the K and C of weight and x, and M >= N rows");
  STD_TORCH_CHECK(ancestors.size(0) == K && ancestors.size(1) == N && ancestors.scalar_type() == ScalarType::Int,
                  "conv_step: expected ancestors (K, N), int32");
  STD_TORCH_CHECK(position.numel() == 1 && position.scalar_type() == ScalarType::Long,
                  "conv_step: expected position (1,), int64");
  STD_TORCH_CHECK(ring.scalar_type() == type, "conv_step: x, weight and ring differ in type");
  STD_TORCH_CHECK(ring.is_contiguous() && ancestors.is_contiguous(), "conv_step: the state is not contiguous");
  return ring.size(1);
}

// Sizes of a decoding step: x (1, N, C), weight (H, K) or, dynamic, (1, N, H, K), and a state whose ring has M rows.
struct StepSizes {
  int64_t N, M, C, H, K;
  bool dynamic;
};

inline StepSizes check_step(const Tensor& x, const Tensor& weight, const Tensor& ring, const Tensor& ancestors,
                            const Tensor& position) {
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && (weight.dim() == 2 || weight.dim() == 4),
                  "conv_step: expected x (1, N, C) and weight (H, K) or (1, N, H, K)");
  const bool dynamic = weight.dim() == 4;
  StepSizes sizes{x.size(1), 0, x.size(2), weight.size(dynamic ? 2 : 0), weight.size(dynamic ? 3 : 1), dynamic};
  STD_TORCH_CHECK(!dynamic || (weight.size(0) == 1 && weight.size(1) == sizes.N),
                  "conv_step: weight (1, N, H, K) has other rows than x (1, N, C)");
  STD_TORCH_CHECK(sizes.K > 0 && sizes.H > 0 && sizes.C % sizes.H == 0,
                  "conv_step: the heads do not divide the channels");
  STD_TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "conv_step: x, weight and ring differ in type");
  sizes.M = check_ring(ring, ancestors, position, sizes.N, sizes.C, sizes.K, x.scalar_type());
  return sizes;
}

}  // namespace lightconv
