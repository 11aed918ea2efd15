// The operators of LightConv and DynamicConv, in the part that all devices share: checks, memory layouts, and
// allocation of results.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "checks.h"

namespace lightconv {

// Returns true if x (T, B, C) is stored as (B, T, C). Then weight, gradient and results have this layout, too.
inline bool is_batch_first(const Tensor& x) {
  return x.dim() == 3 && !x.is_contiguous() && torch::stable::transpose(x, 0, 1).is_contiguous();
}

// Returns a tensor (T, B, ...) in this layout, or LightConv's weight, contiguous. Copies it only if necessary.
inline Tensor in_order(const Tensor& given, bool batch_first) {
  if (!batch_first || given.dim() < 3) return as_contiguous(given);
  const Tensor turned = torch::stable::transpose(given, 0, 1);
  return turned.is_contiguous() ? given : torch::stable::transpose(torch::stable::contiguous(turned), 0, 1);
}

// Allocates a result of the shape of `like` in this layout.
inline Tensor empty_in_order(const Tensor& like, bool batch_first, ScalarType type) {
  if (!batch_first || like.dim() < 3) return torch::stable::new_empty(like, like.sizes(), type);
  const Tensor turned = torch::stable::transpose(like, 0, 1);
  return torch::stable::transpose(torch::stable::new_empty(turned, turned.sizes(), type), 0, 1);
}

// The operands of a convolution, checked: x (T, B, C), weight (H, K) or, if dynamic, (T, B, H, K).
struct Operands {
  bool batch_first, dynamic, softmax, state_batch_first = false;
  Tensor x, weight;
  std::optional<Tensor> seed, offsets, state;
  void* grad_state = nullptr;  // memory for the state's gradient, in the layout of the state
  int64_t T, B, C, H, K, padding_l;
  double dropconnect;

  Operands(const Tensor& x_any, const Tensor& weight_any, int64_t padding_l_, bool softmax_, double dropconnect_,
           const std::optional<Tensor>& seed_, const std::optional<Tensor>& offsets_,
           const std::optional<Tensor>& state_)
      : batch_first(is_batch_first(x_any)), dynamic(weight_any.dim() == 4), softmax(softmax_),
        x(in_order(x_any, batch_first)), weight(in_order(weight_any, batch_first)), seed(seed_), offsets(offsets_),
        padding_l(padding_l_), dropconnect(dropconnect_) {
    STD_TORCH_CHECK(x.dim() == 3 && (dynamic || weight.dim() == 2),
                    "lightconv: expected x (T, B, C) and weight (H, K) or (T, B, H, K)");
    T = x.size(0), B = x.size(1), C = x.size(2), H = weight.size(dynamic ? 2 : 0), K = weight.size(dynamic ? 3 : 1);
    STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "lightconv: x and weight differ in type");
    STD_TORCH_CHECK(!dynamic || (weight.size(0) == T && weight.size(1) == B),
                    "lightconv: weight (T, B, H, K) has another T or B than x");
    STD_TORCH_CHECK(H > 0 && C % H == 0, "lightconv: the heads do not divide the channels");
    STD_TORCH_CHECK(padding_l >= 0 && padding_l < K, "lightconv: padding_l is outside 0..K-1");
    check_dropping("lightconv: dropconnect", dropconnect, seed);
    if (!state_.has_value()) return;
    const int64_t sentences = offsets.has_value() ? offsets->numel() - 1 : B;
    STD_TORCH_CHECK(padding_l == K - 1, "lightconv: only a causal convolution, padding_l = K - 1, has a state");
    STD_TORCH_CHECK(state_->dim() == 3 && state_->size(0) == K - 1 && state_->size(1) == sentences &&
                        state_->size(2) == C && state_->scalar_type() == x.scalar_type(),
                    "lightconv: expected a state (K - 1, sentences, C) of x's type");
    state_batch_first = is_batch_first(*state_);
    state = in_order(*state_, state_batch_first);
  }
};

// Sets the members that the Conv of cpu/kernels.h and that of cuda/conv.cpp share.
template <class Conv>
Conv sizes_of(const Operands& given) {
  Conv conv{};
  conv.T = given.T, conv.B = given.B, conv.H = given.H, conv.K = given.K, conv.padding_l = given.padding_l;
  conv.step = given.batch_first ? 1 : given.B, conv.sentence = given.batch_first ? given.T : 1;
  conv.dynamic = given.dynamic, conv.softmax = given.softmax, conv.dropconnect = probability_of(given.dropconnect);
  conv.x = given.x.const_data_ptr(), conv.logits = given.weight.const_data_ptr();
  return conv;
}

template <void (*Run)(const Operands&, void* out)>
Tensor forward(const Tensor& x, const Tensor& weight, int64_t padding_l, bool softmax, double dropconnect,
               std::optional<Tensor> seed, std::optional<Tensor> offsets, std::optional<Tensor> state) {
  const Operands given(x, weight, padding_l, softmax, dropconnect, seed, offsets, state);
  Tensor out = empty_in_order(given.x, given.batch_first, x.scalar_type());
  if (out.numel() > 0) Run(given, out.mutable_data_ptr());
  return out;
}

// Returns the gradients of x, weight and state. A gradient that is not needed is not computed, and has no elements.
template <void (*Run)(const Operands&, const Tensor& grad, void* grad_x, void* grad_weight)>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_any, const Tensor& x_any, const Tensor& weight_any,
                                            int64_t padding_l, bool softmax, double dropconnect,
                                            std::optional<Tensor> seed, bool need_x, bool need_weight, bool need_state,
                                            std::optional<Tensor> offsets, std::optional<Tensor> state) {
  Operands given(x_any, weight_any, padding_l, softmax, dropconnect, seed, offsets, state);
  STD_TORCH_CHECK(!need_state || state.has_value(), "lightconv: need_state without a state");
  const Tensor &x = given.x, &weight = given.weight, grad = in_order(grad_any, given.batch_first);
  STD_TORCH_CHECK(grad.dim() == 3 && grad.size(0) == given.T && grad.size(1) == given.B && grad.size(2) == given.C &&
                      grad.scalar_type() == x.scalar_type(),
                  "lightconv: the gradient has another shape or type than x");
  // LightConv's weight gradient is a sum over all positions. Without softmax, the derivative of a normalisation outside
  // of this operator may follow, in which large parts of the sum cancel. Therefore 16-bit types get the sum in float32.
  const bool wide = !given.dynamic && !given.softmax && x.scalar_type() != ScalarType::Double;
  const auto room = [&](bool need, const Tensor& like, bool batch_first, ScalarType type) {
    if (!need) return torch::stable::new_empty(x, {0});
    return x.numel() > 0 ? empty_in_order(like, batch_first, type) : torch::stable::new_zeros(like, like.sizes(), type);
  };
  Tensor grad_x = room(need_x, x, given.batch_first, x.scalar_type());
  Tensor grad_weight = room(need_weight, weight, given.batch_first, wide ? ScalarType::Float : x.scalar_type());
  Tensor grad_state = room(need_state, need_state ? *state : x, given.state_batch_first, x.scalar_type());
  if (need_state) given.grad_state = grad_state.mutable_data_ptr();
  if (x.numel() > 0 && (need_x || need_weight || need_state))
    Run(given, grad, need_x ? grad_x.mutable_data_ptr() : nullptr, need_weight ? grad_weight.mutable_data_ptr() : nullptr);
  return {grad_x, grad_weight, grad_state};
}

}  // namespace lightconv
