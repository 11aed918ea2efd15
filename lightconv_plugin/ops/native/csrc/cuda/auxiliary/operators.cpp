// The gate, the loss, residual and norm, sums of columns, a step's attention and candidates, and the end of an update on CUDA tensors.
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "auxiliary_checks.h"
#include "checks.h"
#include "cuda/auxiliary/launch.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

// The gate of x (T, B, 2C), zero where the mask (B, T) is true; with the gradient of that the gradient of x.
Tensor gate(const Tensor& x_any, std::optional<Tensor> mask, const Tensor* grad) {
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(2) % 2 == 0, "glu_mask: expected x (T, B, 2C)");
  GluArgs args{};
  args.T = x.size(0), args.B = x.size(1), args.C = x.size(2) / 2, args.x = x.const_data_ptr();
  if (mask.has_value()) {
    STD_TORCH_CHECK(mask->dim() == 2 && mask->size(0) == args.B && mask->size(1) == args.T &&
                        mask->scalar_type() == ScalarType::Bool,
                    "glu_mask: expected padding_mask (B, T), bool, with the B and T of x (T, B, 2C)");
    check_same(x, *mask, "padding_mask");
    mask = torch::stable::contiguous(*mask);
    args.mask = static_cast<const bool*>(mask->const_data_ptr());
  }
  if (grad != nullptr) {
    STD_TORCH_CHECK(grad->numel() * 2 == x.numel() && grad->scalar_type() == x.scalar_type(),
                    "glu_mask: the gradient has another shape or type than the output");
    check_same(x, *grad, "the gradient");
    args.grad = grad->const_data_ptr();
  }
  Tensor out = torch::stable::new_empty(x, {args.T, args.B, grad != nullptr ? 2 * args.C : args.C});
  args.out = out.mutable_data_ptr();
  if (out.numel() > 0) glu(Memory(x).place(), type_of(x), args);
  return out;
}

Tensor glu_mask(const Tensor& x, std::optional<Tensor> mask) { return gate(x, mask, nullptr); }

Tensor glu_mask_backward(const Tensor& grad_any, const Tensor& x, std::optional<Tensor> mask) {
  const Tensor grad = torch::stable::contiguous(grad_any);
  return gate(x, mask, &grad);
}

// Rows that follow each other with any stride are read where they are; all else is copied first.
Tensor with_dense_rows(const Tensor& logits) {
  const bool dense = logits.dim() == 2 && logits.stride(1) == 1;
  return dense ? logits : torch::stable::contiguous(logits);
}

LossArgs describe(const Tensor& logits, const Tensor& target, int64_t ignore) {
  check_loss(logits, target);
  check_same(logits, target, "target");
  LossArgs args{};
  args.logits = logits.const_data_ptr(), args.target = static_cast<const long long*>(target.const_data_ptr());
  args.N = logits.size(0), args.V = logits.size(1), args.stride = logits.stride(0), args.ignore = ignore;
  return args;
}

std::tuple<Tensor, Tensor> smoothed_nll(const Tensor& logits_any, const Tensor& target_any, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  LossArgs args = describe(logits, target, ignore);
  Tensor sums = torch::stable::new_empty(logits, {2}, ScalarType::Double);
  Tensor log_sums = torch::stable::new_empty(logits, {args.N}, ScalarType::Double);
  args.log_sums = static_cast<double*>(log_sums.mutable_data_ptr());
  args.sums = static_cast<double*>(sums.mutable_data_ptr());
  loss(Memory(logits).place(), type_of(logits), args);
  return {sums, log_sums};
}

Tensor smoothed_nll_backward(const Tensor& grad, const Tensor& logits_any, const Tensor& target_any,
                             const Tensor& log_sums_any, double nll_share, double all_share, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  const Tensor log_sums = torch::stable::contiguous(log_sums_any);
  LossArgs args = describe(logits, target, ignore);
  check_loss_gradient(grad, logits, log_sums);
  check_same(logits, grad, "the gradient");
  check_same(logits, log_sums, "log_sums");
  Tensor out = torch::stable::new_empty(logits, logits.sizes());
  args.grad = grad.const_data_ptr();
  args.log_sums = const_cast<double*>(static_cast<const double*>(log_sums.const_data_ptr()));
  args.nll_share = nll_share, args.all_share = all_share, args.out = out.mutable_data_ptr();
  loss_backward(Memory(logits).place(), type_of(logits), args);
  return out;
}

// The tensor, contiguous, if it has `size` numbers of x's type on x's device.
Tensor fitting(const Tensor& x, const Tensor& other, int64_t size, const char* name) {
  STD_TORCH_CHECK(other.numel() == size && other.scalar_type() == x.scalar_type(),
                  "residual_norm: expected x, y, z and gradients (..., C), weight and bias (C,), of one type; not so: ", name);
  check_same(x, other, name);
  return torch::stable::contiguous(other);
}

DropConnect dropout_of(const Tensor& x, double p, const std::optional<Tensor>& seed) {
  STD_TORCH_CHECK(p >= 0.0 && p < 1.0, "residual_norm: p is outside [0, 1)");
  if (p == 0.0) return {};
  STD_TORCH_CHECK(seed.has_value() && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long,
                  "residual_norm: dropout needs a seed, one int64");
  check_same(x, *seed, "seed");
  return dropping(probability_of(p), static_cast<const long long*>(seed->const_data_ptr()));
}

int64_t channels_of(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() > 0 && x.size(x.dim() - 1) > 0, "lightconv: expected (..., C) with at least one channel");
  return x.size(x.dim() - 1);
}

// z and out as x, and stats (2, ..., 1): mean and rstd of the rows of z, at least in float32.
std::tuple<Tensor, Tensor, Tensor> residual_norm(const Tensor& x_any, const Tensor& y_any, const Tensor& weight_any,
                                                 const Tensor& bias_any, double p, std::optional<Tensor> seed, double eps) {
  const Tensor x = torch::stable::contiguous(x_any), y = fitting(x, y_any, x.numel(), "y");
  NormArgs args{};
  args.C = channels_of(x), args.N = x.numel() / args.C, args.eps = eps, args.dropout = dropout_of(x, p, seed);
  const Tensor weight = fitting(x, weight_any, args.C, "weight"), bias = fitting(x, bias_any, args.C, "bias");
  std::vector<int64_t> shape{2};
  for (int64_t i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
  shape.push_back(1);
  Tensor z = torch::stable::new_empty(x, x.sizes()), out = torch::stable::new_empty(x, x.sizes());
  Tensor stats = torch::stable::new_empty(x, shape, type_of(x) == Type::f64 ? ScalarType::Double : ScalarType::Float);
  args.x = x.const_data_ptr(), args.y = y.const_data_ptr();
  args.weight = weight.const_data_ptr(), args.bias = bias.const_data_ptr();
  args.z = z.mutable_data_ptr(), args.out = out.mutable_data_ptr(), args.stats = stats.mutable_data_ptr();
  norm(Memory(x).place(), type_of(x), args);
  return {out, z, stats};
}

// The gradients of x and y, the latter without elements where nothing is dropped, since it is that of x; and (2, C).
std::tuple<Tensor, Tensor, Tensor> residual_norm_backward(const Tensor& grad_any, std::optional<Tensor> grad_z,
                                                          const Tensor& z_any, const Tensor& weight_any,
                                                          const Tensor& stats_any, double p, std::optional<Tensor> seed) {
  const Tensor z = torch::stable::contiguous(z_any), stats = torch::stable::contiguous(stats_any);
  const Tensor grad = fitting(z, grad_any, z.numel(), "the gradient");
  if (grad_z.has_value()) grad_z = fitting(z, *grad_z, z.numel(), "the gradient of z");
  NormGradArgs args{};
  args.C = channels_of(z), args.N = z.numel() / args.C, args.dropout = dropout_of(z, p, seed);
  const Tensor weight = fitting(z, weight_any, args.C, "weight");
  STD_TORCH_CHECK(stats.numel() == 2 * args.N &&
                      stats.scalar_type() == (type_of(z) == Type::f64 ? ScalarType::Double : ScalarType::Float),
                  "residual_norm_backward: expected stats as residual_norm gives them");
  check_same(z, stats, "stats");
  Tensor grad_x = torch::stable::new_empty(z, z.sizes()), grad_affine = torch::stable::new_empty(z, {2, args.C});
  Tensor grad_y = p > 0.0 ? torch::stable::new_empty(z, z.sizes()) : torch::stable::new_empty(z, {0});
  args.grad = grad.const_data_ptr(), args.grad_z = grad_z.has_value() ? grad_z->const_data_ptr() : nullptr;
  args.z = z.const_data_ptr(), args.weight = weight.const_data_ptr(), args.stats = stats.const_data_ptr();
  args.grad_x = grad_x.mutable_data_ptr(), args.grad_affine = grad_affine.mutable_data_ptr();
  if (p > 0.0) args.grad_y = grad_y.mutable_data_ptr();
  Memory memory(z);
  norm_backward(memory.place(), type_of(z), args);
  return {grad_x, grad_y, grad_affine};
}

Tensor column_sums(const Tensor& x_any) {
  STD_TORCH_CHECK(x_any.dim() == 2, "column_sums: expected x (N, C)");
  const Tensor x = torch::stable::contiguous(x_any);
  Tensor out = torch::stable::new_empty(x, {x.size(1)});
  Memory memory(x);
  sums(memory.place(), type_of(x), {x.const_data_ptr(), nullptr, out.mutable_data_ptr(), x.size(0), x.size(1), 0});
  return out;
}

Tensor attention(const Tensor& query_any, const Tensor& keys, const Tensor& values, std::optional<Tensor> padding,
              const Tensor& sentence, int64_t heads) {
  const Tensor query = torch::stable::contiguous(query_any);
  STD_TORCH_CHECK(query.dim() == 3 && query.size(0) == 1, "attend: expected query (1, N, C)");
  const int64_t N = query.size(1), C = query.size(2);
  check_attention(keys, values, padding, sentence, N, C, heads, query.scalar_type());
  for (const auto& [tensor, name] : {std::pair{&keys, "keys"}, {&values, "values"}, {&sentence, "sentence"}})
    check_same(query, *tensor, name);
  if (padding.has_value()) check_same(query, *padding, "padding");
  Tensor out = torch::stable::new_empty(query, query.sizes());
  AttendArgs args{query.const_data_ptr(), keys.const_data_ptr(), values.const_data_ptr(), nullptr, nullptr,
                  out.mutable_data_ptr(), 1 / std::sqrt(static_cast<double>(C / heads)), N, heads, keys.size(1), keys.size(0)};
  if (padding.has_value()) args.padding = static_cast<const bool*>(padding->const_data_ptr());
  args.sentence = reinterpret_cast<const long long*>(sentence.const_data_ptr());
  if (out.numel() > 0) attend(Memory(query).place(), type_of(query), C / heads, args);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> step_candidates(const Tensor& logits_any, const Tensor& scores_any,
                                                   const Tensor& limits, int64_t beams, int64_t count, double temperature,
                                                   int64_t pad, int64_t eos, int64_t unk, double unk_penalty) {
  const Tensor logits = torch::stable::contiguous(logits_any), scores = torch::stable::contiguous(scores_any);
  STD_TORCH_CHECK(logits.dim() == 2 && beams > 0 && logits.size(0) % beams == 0,
                  "step_candidates: expected logits (sentences * beams, V)");
  STD_TORCH_CHECK(scores.numel() == logits.size(0) && scores.scalar_type() == ScalarType::Float,
                  "step_candidates: expected scores (sentences * beams,), float32");
  STD_TORCH_CHECK(limits.numel() == 3 && limits.scalar_type() == ScalarType::Long && limits.is_contiguous(),
                  "step_candidates: expected limits (3,), int64");
  check_same(logits, scores, "scores");
  check_same(logits, limits, "limits");
  CandidateArgs args{};
  args.N = logits.size(0), args.V = logits.size(1), args.beams = beams;
  const std::vector<int64_t> shape{args.N / beams, count};
  Tensor best = torch::stable::new_empty(scores, shape), words = torch::stable::new_empty(limits, shape);
  Tensor parents = torch::stable::new_empty(limits, shape);
  args.logits = logits.const_data_ptr(), args.scores = static_cast<const float*>(scores.const_data_ptr());
  args.limits = reinterpret_cast<const long long*>(limits.const_data_ptr());
  args.best = static_cast<float*>(best.mutable_data_ptr());
  args.words = reinterpret_cast<long long*>(words.mutable_data_ptr());
  args.parents = reinterpret_cast<long long*>(parents.mutable_data_ptr());
  args.temperature = temperature, args.unk_penalty = unk_penalty, args.pad = pad, args.eos = eos, args.unk = unk;
  Memory memory(logits);
  if (args.N > 0) candidates(memory.place(), type_of(logits), static_cast<int>(count), args);
  return {best, words, parents};
}

const double* numbers(const Tensor& x, const char* name, int64_t least) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Double && x.is_contiguous() && x.numel() >= least,
                  "update_decide: expected at least ", least, " numbers of float64 in ", name);
  return static_cast<const double*>(x.const_data_ptr());
}

void update_decide(const Tensor& norm, const Tensor& sample_size, const Tensor& orders, const Tensor& settings,
                   Tensor control, Tensor outcome) {
  STD_TORCH_CHECK(norm.numel() == 1 && norm.scalar_type() == ScalarType::Float, "update_decide: norm: one float32");
  for (const Tensor* other : std::initializer_list<const Tensor*>{&sample_size, &orders, &settings, &control, &outcome})
    check_same(norm, *other, "a vector");
  DecideArgs args{};
  args.norm = static_cast<const float*>(norm.const_data_ptr());
  args.sample_size = numbers(sample_size, "sample_size", 1), args.orders = numbers(orders, "orders", 2);
  args.settings = numbers(settings, "settings", SETTINGS);
  args.control = const_cast<double*>(numbers(control, "control", CONTROLS));
  args.outcome = const_cast<double*>(numbers(outcome, "outcome", OUTCOMES));
  decide(Memory(norm).place(), args);
}

void adam_step(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, std::optional<Tensor> weight,
               const Tensor& outcome, double beta1, double beta2, double eps) {
  AdamArgs args{};
  args.N = param.numel(), args.beta1 = beta1, args.beta2 = beta2, args.eps = eps;
  STD_TORCH_CHECK(args.N % 8 == 0, "adam_step: ", args.N, " numbers are no multiple of 8");
  const auto pointer = [&](Tensor& x, ScalarType type) {
    check_same(param, x, "a tensor of adam_step");
    STD_TORCH_CHECK(x.numel() == args.N && x.scalar_type() == type && x.is_contiguous() && aligned({x.const_data_ptr()}),
                    "adam_step: expected flat tensors of one size, contiguous, from multiples of 16 bytes on");
    return x.mutable_data_ptr();
  };
  args.param = static_cast<float*>(pointer(param, ScalarType::Float));
  args.exp_avg = static_cast<float*>(pointer(exp_avg, ScalarType::Float));
  args.exp_avg_sq = static_cast<float*>(pointer(exp_avg_sq, ScalarType::Float));
  args.grad = pointer(grad, grad.scalar_type());
  if (weight.has_value()) args.weight = pointer(*weight, grad.scalar_type());
  args.outcome = numbers(outcome, "outcome", OUTCOMES);
  adam(Memory(param).place(), type_of(grad), args);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CUDA, m) {
  m.impl("glu_mask", TORCH_BOX(&glu_mask));
  m.impl("glu_mask_backward", TORCH_BOX(&glu_mask_backward));
  m.impl("smoothed_nll", TORCH_BOX(&smoothed_nll));
  m.impl("smoothed_nll_backward", TORCH_BOX(&smoothed_nll_backward));
  m.impl("residual_norm", TORCH_BOX(&residual_norm));
  m.impl("residual_norm_backward", TORCH_BOX(&residual_norm_backward));
  m.impl("column_sums", TORCH_BOX(&column_sums));
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("attend", TORCH_BOX(&attention));
  m.impl("update_decide", TORCH_BOX(&update_decide));
  m.impl("adam_step", TORCH_BOX(&adam_step));
}

}  // namespace lightconv::cuda
