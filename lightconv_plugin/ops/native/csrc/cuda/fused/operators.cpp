// The fused operators on CUDA tensors: GLU, loss, residual and norm, attention, candidates and beam search of a
// decoding step, and the end of an update.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

int sum_size(Type type) { return type == Type::f64 ? 8 : 4; }

Case case_of(Type type) {
  Case c{};
  c.type = type;
  return c;
}

// Returns the case of rows of `numbers` numbers that start at the pointers. R: numbers in the widest vector to whose
// size all rows are aligned.
Case case_of_rows(Type type, int64_t numbers, std::initializer_list<const void*> pointers) {
  Case c = case_of(type);
  uintptr_t places = static_cast<uintptr_t>(numbers) * size_of(type);
  for (const void* pointer : pointers) places |= reinterpret_cast<uintptr_t>(pointer);
  c.aligned = true, c.R = power_of_two_in(static_cast<int>(places % 16), 16) / size_of(type);
  return c;
}

// ---- The gate ----

const Kernel GLU{"glu", "fused/glu", "GluArgs", "glu_mask_forward"};
const Kernel GLU_BACKWARD{"glu_backward", "fused/glu", "GluArgs", "glu_mask_backward"};

// Returns the GLU of x (T, B, 2C), 0 where the mask (B, T) is true; or, given the gradient of this, the gradient of x.
Tensor gate(const Tensor& x_any, std::optional<Tensor> mask, const Tensor* grad) {
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(2) % 2 == 0, "glu_mask: expected x (T, B, 2C)");
  GluArgs args{};
  args.T = x.size(0), args.B = x.size(1), args.C = x.size(2) / 2, args.x = x.const_data_ptr();
  STD_TORCH_CHECK(args.C <= 0x7fffffff, "glu_mask: it takes at most 2147483647 channels");
  if (mask.has_value()) {
    STD_TORCH_CHECK(mask->dim() == 2 && mask->size(0) == args.B && mask->size(1) == args.T &&
                        mask->scalar_type() == ScalarType::Bool,
                    "glu_mask: expected padding_mask (B, T), bool, with the B and T of x (T, B, 2C)");
    check_same(x, *mask, "padding_mask");
    mask = torch::stable::contiguous(*mask);
    args.mask = static_cast<const bool*>(mask->const_data_ptr());
  }
  if (grad != nullptr) args.grad = grad->const_data_ptr();
  Tensor out = torch::stable::new_empty(x, {args.T, args.B, grad != nullptr ? 2 * args.C : args.C});
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) return out;
  Case c = case_of(type_of(x));
  c.R = static_cast<int>(args.C), c.mask = mask.has_value(), c.aligned = aligned({args.x, args.grad, args.out});
  launch(Memory(x).place(), grad == nullptr ? GLU : GLU_BACKWARD, c,
         {blocks_for(args.T * args.B * (args.C / vector_of(c)), 256), 256, 0}, &args);
  return out;
}

Tensor glu_mask(const Tensor& x, std::optional<Tensor> mask) { return gate(x, mask, nullptr); }

Tensor glu_mask_backward(const Tensor& grad_any, const Tensor& x, std::optional<Tensor> mask) {
  const Tensor grad = torch::stable::contiguous(grad_any);
  return gate(x, mask, &grad);
}

// ---- The loss ----

const Kernel SMOOTHED_NLL{"smoothed_nll", "fused/loss", "LossArgs", "smoothed_nll_forward"};
const Kernel SMOOTHED_NLL_SUM{"smoothed_nll_sum", "fused/loss", "LossArgs", "smoothed_nll_forward_sum"};
const Kernel SMOOTHED_NLL_BACKWARD{"smoothed_nll_backward", "fused/loss", "LossArgs", "smoothed_nll_backward"};

// Returns the logits if the numbers of a row are contiguous, with any stride between rows; otherwise a contiguous copy.
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

Case case_of_loss(Type type, const LossArgs& args) {
  return case_of_rows(type, args.V | args.stride, {args.logits, args.out});
}

// Returns the sums (2,) of -log p(target) and of -log p over the vocabulary, and log_sums (N,). A target outside of
// 0..V-1 gives NaN.
std::tuple<Tensor, Tensor> smoothed_nll(const Tensor& logits_any, const Tensor& target_any, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  LossArgs args = describe(logits, target, ignore);
  Tensor sums = torch::stable::new_empty(logits, {2}, ScalarType::Double);
  Tensor log_sums = torch::stable::new_empty(logits, {args.N}, ScalarType::Double);
  args.log_sums = static_cast<double*>(log_sums.mutable_data_ptr());
  args.sums = static_cast<double*>(sums.mutable_data_ptr());
  Memory memory(logits);
  const Place place = memory.place();
  args.terms = static_cast<double*>(place.scratch(sizeof(double) * 2 * args.N));
  const Type type = type_of(logits);
  const int warps = LOSS_THREADS / 32;
  launch(place, SMOOTHED_NLL, case_of_loss(type, args), {args.N, LOSS_THREADS, warps * 3 * sum_size(type)}, &args);
  launch(place, SMOOTHED_NLL_SUM, case_of(Type::f64), {1, LOSS_THREADS, warps * 2 * 8}, &args);
  return {sums, log_sums};
}

// Returns the gradient of grad * (nll_share * sums[0] + all_share * sums[1]) with respect to the logits.
Tensor smoothed_nll_backward(const Tensor& grad, const Tensor& logits_any, const Tensor& target_any,
                             const Tensor& log_sums_any, double nll_share, double all_share, int64_t ignore) {
  const Tensor logits = with_dense_rows(logits_any), target = torch::stable::contiguous(target_any);
  const Tensor log_sums = torch::stable::contiguous(log_sums_any);
  LossArgs args = describe(logits, target, ignore);
  Tensor out = torch::stable::new_empty(logits, logits.sizes());
  args.grad = grad.const_data_ptr();
  args.log_sums = const_cast<double*>(static_cast<const double*>(log_sums.const_data_ptr()));
  args.nll_share = nll_share, args.all_share = all_share, args.out = out.mutable_data_ptr();
  const Case c = case_of_loss(type_of(logits), args);
  launch(Memory(logits).place(), SMOOTHED_NLL_BACKWARD, c, {args.N, LOSS_THREADS, 0}, &args);
  return out;
}

// ---- Residual and norm ----

const Kernel RESIDUAL_NORM{"residual_norm", "fused/residual", "NormArgs", "residual_norm_forward"};
const Kernel RESIDUAL_NORM_BACKWARD{"residual_norm_backward", "fused/residual", "NormGradArgs", "residual_norm_backward"};
const Kernel RESIDUAL_NORM_SUMS{"residual_norm_sums", "fused/residual", "NormGradArgs", "residual_norm_sums"};
const long long NORM_BLOCKS = 264;  // of the backward pass: two for each multiprocessor of an H100

// Returns `other`, contiguous, after a check that it has `size` numbers of x's type on x's device.
Tensor fitting(const Tensor& x, const Tensor& other, int64_t size, const char* name) {
  STD_TORCH_CHECK(other.numel() == size && other.scalar_type() == x.scalar_type(),
                  "residual_norm: expected x and y (..., C), weight and bias (C,), of one type; wrong: ", name);
  check_same(x, other, name);
  return torch::stable::contiguous(other);
}

DropConnect dropout_of(const Tensor& x, double p, const std::optional<Tensor>& seed) {
  check_dropping("residual_norm: p", p, seed);
  if (p == 0.0) return {};
  check_same(x, *seed, "seed");
  return dropping(probability_of(p), static_cast<const long long*>(seed->const_data_ptr()));
}

int64_t channels_of(const Tensor& x) {
  const int64_t channels = x.dim() > 0 ? x.size(x.dim() - 1) : 0;
  STD_TORCH_CHECK(channels > 0, "residual_norm: expected (..., C) with at least one channel");
  STD_TORCH_CHECK(channels <= NORM_WIDEST, "residual_norm: it takes rows of at most ", NORM_WIDEST, " numbers; got ", channels);
  return channels;
}

Case case_of_norm(Type type, long long C, const DropConnect& dropout, std::initializer_list<const void*> pointers) {
  Case c = case_of(type);
  c.R = static_cast<int>(C), c.drop = dropout.seed != nullptr, c.aligned = aligned(pointers);
  return c;
}

// Returns out and z, of x's shape, and stats (2, ..., 1): mean and rstd of the rows of z, in float32 or wider.
std::tuple<Tensor, Tensor, Tensor> residual_norm(const Tensor& x_any, const Tensor& y_any, const Tensor& weight_any,
                                                 const Tensor& bias_any, double p, std::optional<Tensor> seed, double eps) {
  const Tensor x = torch::stable::contiguous(x_any), y = fitting(x, y_any, x.numel(), "y");
  NormArgs args{};
  args.C = channels_of(x), args.N = x.numel() / args.C, args.eps = eps, args.dropout = dropout_of(x, p, seed);
  const Tensor weight = fitting(x, weight_any, args.C, "weight"), bias = fitting(x, bias_any, args.C, "bias");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.insert(shape.begin(), 2), shape.back() = 1;
  Tensor z = torch::stable::new_empty(x, x.sizes()), out = torch::stable::new_empty(x, x.sizes());
  const Type type = type_of(x);
  Tensor stats = torch::stable::new_empty(x, shape, type == Type::f64 ? ScalarType::Double : ScalarType::Float);
  args.x = x.const_data_ptr(), args.y = y.const_data_ptr();
  args.weight = weight.const_data_ptr(), args.bias = bias.const_data_ptr();
  args.z = z.mutable_data_ptr(), args.out = out.mutable_data_ptr(), args.stats = stats.mutable_data_ptr();
  const Case c = case_of_norm(type, args.C, args.dropout, {args.x, args.y, args.weight, args.bias, args.z, args.out});
  launch(Memory(x).place(), RESIDUAL_NORM, c,
         {blocks_for(args.N, norm_tile(c).rows), NORM_THREADS, NORM_THREADS / 32 * sum_size(type)}, &args);
  return {out, z, stats};
}

// Returns the gradients of x and y, and those of weight and bias as (2, C). Without dropout the gradient of y is that
// of x, and a tensor without elements is returned for it.
std::tuple<Tensor, Tensor, Tensor> residual_norm_backward(const Tensor& grad_any, const Tensor& z_any,
                                                          const Tensor& weight_any, const Tensor& stats_any, double p,
                                                          std::optional<Tensor> seed) {
  const Tensor z = torch::stable::contiguous(z_any), stats = torch::stable::contiguous(stats_any);
  const Tensor grad = torch::stable::contiguous(grad_any), weight = torch::stable::contiguous(weight_any);
  NormGradArgs args{};
  args.C = channels_of(z), args.N = z.numel() / args.C, args.dropout = dropout_of(z, p, seed);
  const Type type = type_of(z);
  Tensor grad_x = torch::stable::new_empty(z, z.sizes()), grad_affine = torch::stable::new_empty(z, {2, args.C});
  Tensor grad_y = p > 0.0 ? torch::stable::new_empty(z, z.sizes()) : torch::stable::new_empty(z, {0});
  args.grad = grad.const_data_ptr(), args.z = z.const_data_ptr();
  args.weight = weight.const_data_ptr(), args.stats = stats.const_data_ptr();
  args.grad_x = grad_x.mutable_data_ptr(), args.grad_affine = grad_affine.mutable_data_ptr();
  if (p > 0.0) args.grad_y = grad_y.mutable_data_ptr();
  const Case c = case_of_norm(type, args.C, args.dropout, {args.grad, args.z, args.weight, args.grad_x, args.grad_y});
  const int rows = norm_tile(c).rows, size = sum_size(type);
  const long long groups = blocks_for(args.N, rows), turns = blocks_for(groups, NORM_BLOCKS);
  args.splits = groups == 0 ? 0 : blocks_for(groups, turns);  // all have equally many turns, except the last ones
  Memory memory(z);
  const Place place = memory.place();
  args.partial = place.scratch(args.splits * 2 * args.C * size);
  launch(place, RESIDUAL_NORM_BACKWARD, c, {args.splits, NORM_THREADS, rows * c.R * size}, &args);
  launch(place, RESIDUAL_NORM_SUMS, case_of(type), {blocks_for(2 * args.C, 32), NORM_THREADS, NORM_THREADS * size}, &args);
  return {grad_x, grad_y, grad_affine};
}

// ---- Attention and candidates of a step ----

const Kernel ATTEND{"attend", "fused/attend", "AttendArgs", "attend"};
const Kernel CANDIDATES{"step_candidates", "fused/candidates", "CandidateArgs", "step_candidates"};
const Kernel CANDIDATES_FINISH{"step_candidates_finish", "fused/candidates", "CandidateArgs", "step_candidates_finish"};

Tensor attend(const Tensor& query_any, const Tensor& keys, const Tensor& values, std::optional<Tensor> padding,
              const Tensor& sentence, int64_t heads) {
  const Tensor query = torch::stable::contiguous(query_any);
  STD_TORCH_CHECK(query.dim() == 3 && query.size(0) == 1, "attend: expected query (1, N, C)");
  const int64_t N = query.size(1), C = query.size(2);
  check_attention(keys, values, padding, sentence, N, C, heads, query.scalar_type());
  STD_TORCH_CHECK(C / heads <= ATTEND_WIDEST, "attend: it takes heads of at most ", ATTEND_WIDEST, " channels; got ", C / heads);
  for (const auto& [tensor, name] : {std::pair{&keys, "keys"}, {&values, "values"}, {&sentence, "sentence"}})
    check_same(query, *tensor, name);
  if (padding.has_value()) check_same(query, *padding, "padding");
  Tensor out = torch::stable::new_empty(query, query.sizes());
  AttendArgs args{query.const_data_ptr(), keys.const_data_ptr(), values.const_data_ptr(), nullptr, nullptr,
                  out.mutable_data_ptr(), 1 / std::sqrt(static_cast<double>(C / heads)), N, heads, keys.size(1), keys.size(0)};
  if (padding.has_value()) args.padding = static_cast<const bool*>(padding->const_data_ptr());
  args.sentence = reinterpret_cast<const long long*>(sentence.const_data_ptr());
  if (out.numel() == 0) return out;
  Case c = case_of(type_of(query));
  c.R = static_cast<int>(C / heads), c.mask = args.padding != nullptr;
  c.aligned = aligned({args.query, args.keys, args.values, args.out});
  launch(Memory(query).place(), ATTEND, c, {blocks_for(N, ATTEND_THREADS / 32) * heads, ATTEND_THREADS, 0}, &args);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> step_candidates(const Tensor& logits_any, const Tensor& scores_any,
                                                   const Tensor& limits, int64_t beams, int64_t count, double temperature,
                                                   int64_t pad, int64_t eos, int64_t unk, double unk_penalty) {
  const Tensor logits = torch::stable::contiguous(logits_any), scores = torch::stable::contiguous(scores_any);
  check_candidates(logits, scores, limits, beams, temperature, {pad, eos, unk});
  check_same(logits, scores, "scores");
  check_same(logits, limits, "limits");
  CandidateArgs args{};
  args.N = logits.size(0), args.V = logits.size(1), args.beams = beams;
  STD_TORCH_CHECK(count >= 1 && count <= MOST_CANDIDATES && beams <= MOST_BEAMS && count <= args.V,
                  "step_candidates takes 1 to ", MOST_CANDIDATES, " continuations, at most V, of up to ", MOST_BEAMS,
                  " hypotheses");
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
  const Place place = memory.place();
  args.kept = static_cast<float*>(place.scratch(sizeof(float) * args.N * count));
  args.kept_words = static_cast<long long*>(place.scratch(sizeof(long long) * args.N * count));
  Case c = case_of_rows(type_of(logits), args.V, {args.logits}), of_sentences = case_of(c.type);
  c.K = of_sentences.K = static_cast<int>(count);
  launch(place, CANDIDATES, c, {args.N, CANDIDATE_THREADS, CANDIDATE_THREADS / 32 * (12 + 16)}, &args);
  launch(place, CANDIDATES_FINISH, of_sentences, {args.N / beams, 32, 0}, &args);
  return {best, words, parents};
}

const Kernel SEARCH_STEP{"search_step", "fused/search", "SearchArgs", "search_step"};

void search_step(const Tensor& values, const Tensor& candidates, const Tensor& origins, Tensor limits, Tensor clock,
                 const Tensor& penalties, Tensor newest, Tensor scores, Tensor order, Tensor words, Tensor parents,
                 Tensor sums, Tensor steps, Tensor rows, Tensor totals, Tensor ranks, Tensor open, Tensor ancestors,
                 int64_t eos, bool stepwise) {
  const auto [N, sentences, beams, longest, slots] =
      check_search(values, candidates, origins, limits, clock, penalties, newest, scores, order, words, parents, sums, steps,
                   rows, totals, ranks, open, ancestors);
  STD_TORCH_CHECK(beams <= MOST_BEAMS, "search_step takes 1 to ", MOST_BEAMS, " hypotheses of each sentence");
  const auto pointer = [&]<class T>(const Tensor& x, T*) {
    check_same(values, x, "a tensor of search_step");
    return static_cast<T*>(x.mutable_data_ptr());
  };
  const auto integers = [&](const Tensor& x) { return pointer(x, static_cast<long long*>(nullptr)); };
  const auto floats = [&](const Tensor& x) { return pointer(x, static_cast<float*>(nullptr)); };
  const auto doubles = [&](const Tensor& x) { return pointer(x, static_cast<double*>(nullptr)); };
  const SearchArgs args{floats(values), integers(candidates), integers(origins), integers(limits), integers(clock),
                        doubles(penalties), integers(newest), floats(scores), integers(order), integers(words),
                        integers(parents), floats(sums), integers(steps), integers(rows), floats(totals), doubles(ranks),
                        pointer(open, static_cast<bool*>(nullptr)), pointer(ancestors, static_cast<int*>(nullptr)),
                        N, eos, static_cast<int>(beams), static_cast<int>(slots), stepwise};
  launch(Memory(values).place(), SEARCH_STEP, case_of(Type::f32), {sentences, SEARCH_THREADS, MOST_BEAMS * 4}, &args);
}

// ---- The end of an update ----

const Kernel UPDATE_DECIDE{"update_decide", "fused/update", "DecideArgs", "update_decide"};
const Kernel ADAM_STEP{"adam_step", "fused/update", "AdamArgs", "adam_step"};

const double* numbers(const Tensor& x, const char* name, int64_t least) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Double && x.is_contiguous() && x.numel() >= least,
                  "update_decide: expected at least ", least, " contiguous float64 numbers in ", name);
  return static_cast<const double*>(x.const_data_ptr());
}

void update_decide(const Tensor& norm, const Tensor& sample_size, const Tensor& orders, const Tensor& settings,
                   Tensor control, Tensor outcome) {
  STD_TORCH_CHECK(norm.numel() == 1 && norm.scalar_type() == ScalarType::Float,
                  "update_decide: expected one float32 as norm");
  for (const Tensor* other : std::initializer_list<const Tensor*>{&sample_size, &orders, &settings, &control, &outcome})
    check_same(norm, *other, "an argument of update_decide");
  DecideArgs args{};
  args.norm = static_cast<const float*>(norm.const_data_ptr());
  args.sample_size = numbers(sample_size, "sample_size", 1), args.orders = numbers(orders, "orders", 2);
  args.settings = numbers(settings, "settings", SETTINGS);
  args.control = const_cast<double*>(numbers(control, "control", CONTROLS));
  args.outcome = const_cast<double*>(numbers(outcome, "outcome", OUTCOMES));
  launch(Memory(norm).place(), UPDATE_DECIDE, case_of(Type::f64), {1, 32, 0}, &args);
}

void adam_step(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, std::optional<Tensor> weight,
               const Tensor& outcome, double beta1, double beta2, double eps) {
  AdamArgs args{};
  args.N = param.numel(), args.beta1 = beta1, args.beta2 = beta2, args.eps = eps;
  STD_TORCH_CHECK(args.N % 8 == 0, "adam_step: ", args.N, " parameters are not a multiple of 8");
  const auto pointer = [&](Tensor& x, ScalarType type) {
    check_same(param, x, "a tensor of adam_step");
    STD_TORCH_CHECK(x.numel() == args.N && x.scalar_type() == type && x.is_contiguous() && aligned({x.const_data_ptr()}),
                    "adam_step: expected contiguous tensors of one size and of the right types, aligned to 16 bytes");
    return x.mutable_data_ptr();
  };
  args.param = static_cast<float*>(pointer(param, ScalarType::Float));
  args.exp_avg = static_cast<float*>(pointer(exp_avg, ScalarType::Float));
  args.exp_avg_sq = static_cast<float*>(pointer(exp_avg_sq, ScalarType::Float));
  args.grad = pointer(grad, grad.scalar_type());
  if (weight.has_value()) args.weight = pointer(*weight, grad.scalar_type());
  args.outcome = numbers(outcome, "outcome", OUTCOMES);
  launch(Memory(param).place(), ADAM_STEP, case_of(type_of(grad)), {blocks_for(args.N / 8, 256), 256, 0}, &args);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, LIGHTCONV_GPU, m) {
  m.impl("glu_mask", TORCH_BOX(&glu_mask));
  m.impl("glu_mask_backward", TORCH_BOX(&glu_mask_backward));
  m.impl("smoothed_nll", TORCH_BOX(&smoothed_nll));
  m.impl("smoothed_nll_backward", TORCH_BOX(&smoothed_nll_backward));
  m.impl("residual_norm", TORCH_BOX(&residual_norm));
  m.impl("residual_norm_backward", TORCH_BOX(&residual_norm_backward));
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("search_step", TORCH_BOX(&search_step));
  m.impl("update_decide", TORCH_BOX(&update_decide));
  m.impl("adam_step", TORCH_BOX(&adam_step));
}

}  // namespace lightconv::cuda
