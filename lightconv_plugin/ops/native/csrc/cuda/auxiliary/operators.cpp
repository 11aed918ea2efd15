// The gate and the loss on CUDA tensors.
#include <optional>
#include <tuple>

#include "auxiliary_checks.h"
#include "cuda/auxiliary/launch.h"
#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

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

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CUDA, m) {
  m.impl("glu_mask", TORCH_BOX(&glu_mask));
  m.impl("glu_mask_backward", TORCH_BOX(&glu_mask_backward));
  m.impl("smoothed_nll", TORCH_BOX(&smoothed_nll));
  m.impl("smoothed_nll_backward", TORCH_BOX(&smoothed_nll_backward));
}

}  // namespace lightconv::cuda
