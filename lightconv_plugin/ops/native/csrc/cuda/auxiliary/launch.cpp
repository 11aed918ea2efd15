#include "cuda/auxiliary/launch.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/kernels.h"

namespace lightconv::cuda {
namespace {

const Kernel GLU{"glu", "auxiliary/glu", "GluArgs", "glu_mask_forward"};
const Kernel GLU_BACKWARD{"glu_backward", "auxiliary/glu", "GluArgs", "glu_mask_backward"};
const Kernel SMOOTHED_NLL{"smoothed_nll", "auxiliary/loss", "LossArgs", "smoothed_nll_forward"};
const Kernel SMOOTHED_NLL_SUM{"smoothed_nll_sum", "auxiliary/loss", "LossArgs", "smoothed_nll_forward_sum"};
const Kernel SMOOTHED_NLL_BACKWARD{"smoothed_nll_backward", "auxiliary/loss", "LossArgs", "smoothed_nll_backward"};
const Kernel UPDATE_DECIDE{"update_decide", "auxiliary/update", "DecideArgs", "update_decide"};
const Kernel ADAM_STEP{"adam_step", "auxiliary/update", "AdamArgs", "adam_step"};
const Kernel RESIDUAL_NORM{"residual_norm", "auxiliary/residual", "NormArgs", "residual_norm_forward"};
const Kernel RESIDUAL_NORM_BACKWARD{"residual_norm_backward", "auxiliary/residual", "NormGradArgs", "residual_norm_backward"};
const Kernel COLUMN_SUMS{"column_sums", "auxiliary/sums", "SumsArgs", "column_sums"};
const Kernel COLUMN_SUMS_OF_FEW{"column_sums_of_few", "auxiliary/sums", "SumsArgs", "column_sums_of_few"};
const Kernel COLUMN_SUMS_FINISH{"column_sums_finish", "auxiliary/sums", "SumsArgs", "column_sums_finish"};

const Kernel CANDIDATES{"step_candidates", "auxiliary/candidates", "CandidateArgs", "step_candidates"};
const Kernel CANDIDATES_FINISH{"step_candidates_finish", "auxiliary/candidates", "CandidateArgs", "step_candidates_finish"};
const Kernel ATTEND{"attend", "auxiliary/attend", "AttendArgs", "attend"};

const long long NORM_BLOCKS = 264;  // of the backward pass: two for each multiprocessor of an H100
const long long SUMS_BLOCKS = 528;  // of the first stage, at most, unless more columns ask for them

int sum_size(Type type) { return type == Type::f64 ? 8 : 4; }

// Needs partial, splits, C and out.
void finish_sums(const Place& place, Type type, const SumsArgs& args) {
  Case c{};
  c.type = type;
  launch(place, COLUMN_SUMS_FINISH, c, {blocks_for(args.C, 32), SUMS_THREADS, SUMS_THREADS * sum_size(type)}, &args);
}

Case norm_case(Type type, long long C, const DropConnect& dropout, bool is_aligned) {
  if (C > NORM_WIDEST)
    throw std::runtime_error("lightconv: residual_norm takes rows of at most " + std::to_string(NORM_WIDEST) +
                             " numbers; got " + std::to_string(C));
  Case c{};
  c.type = type, c.R = static_cast<int>(C), c.drop = dropout.seed != nullptr, c.aligned = is_aligned;
  return c;
}

// R: the widest vector that divides every row of the logits and of `out`, wherever they begin.
Case case_of(Type type, const LossArgs& args) {
  const uintptr_t steps = static_cast<uintptr_t>(args.V | args.stride) * size_of(type);
  const uintptr_t places = reinterpret_cast<uintptr_t>(args.logits) | reinterpret_cast<uintptr_t>(args.out);
  Case c{};
  c.type = type, c.aligned = true;
  c.R = power_of_two_in(static_cast<int>((steps | places) % 16), 16) / size_of(type);
  return c;
}

}  // namespace

void glu(const Place& place, Type type, const GluArgs& args) {
  if (args.C > 0x7fffffff) throw std::runtime_error("lightconv: glu takes at most 2147483647 channels");
  Case c{};
  c.type = type, c.R = static_cast<int>(args.C), c.mask = args.mask != nullptr;
  c.aligned = aligned({args.x, args.grad, args.out});
  launch(place, args.grad == nullptr ? GLU : GLU_BACKWARD, c,
         {blocks_for(args.T * args.B * (args.C / vector_of(c)), 256), 256, 0}, &args);
}

void loss(const Place& place, Type type, LossArgs args) {
  args.terms = static_cast<double*>(place.scratch(sizeof(double) * 2 * args.N));
  const int warps = LOSS_THREADS / 32;
  launch(place, SMOOTHED_NLL, case_of(type, args), {args.N, LOSS_THREADS, warps * 3 * sum_size(type)}, &args);
  Case of_sums{};
  of_sums.type = Type::f64;
  launch(place, SMOOTHED_NLL_SUM, of_sums, {1, LOSS_THREADS, warps * 2 * 8}, &args);
}

void loss_backward(const Place& place, Type type, const LossArgs& args) {
  launch(place, SMOOTHED_NLL_BACKWARD, case_of(type, args), {args.N, LOSS_THREADS, 0}, &args);
}

void norm(const Place& place, Type type, const NormArgs& args) {
  const Case c = norm_case(type, args.C, args.dropout, aligned({args.x, args.y, args.weight, args.bias, args.z, args.out}));
  launch(place, RESIDUAL_NORM, c,
         {blocks_for(args.N, norm_tile(c).rows), NORM_THREADS, NORM_THREADS / 32 * sum_size(type)}, &args);
}

void norm_backward(const Place& place, Type type, NormGradArgs args) {
  const Case c = norm_case(type, args.C, args.dropout,
                           aligned({args.grad, args.grad_z, args.z, args.weight, args.grad_x, args.grad_y}));
  const int rows = norm_tile(c).rows, size = sum_size(type);
  const long long groups = blocks_for(args.N, rows), turns = blocks_for(groups, NORM_BLOCKS);
  args.splits = groups == 0 ? 0 : blocks_for(groups, turns);  // each with as many turns, but for the last ones
  args.partial = place.scratch(args.splits * 2 * args.C * size);
  launch(place, RESIDUAL_NORM_BACKWARD, c, {args.splits, NORM_THREADS, rows * c.R * size}, &args);
  finish_sums(place, type, {nullptr, args.partial, args.grad_affine, 0, 2 * args.C, args.splits});
}

void sums(const Place& place, Type type, SumsArgs args) {
  Case c{};
  c.type = type, c.aligned = aligned({args.x});
  c.R = power_of_two_in(static_cast<int>(args.C % 16), 16 / size_of(type));
  const int columns = 32 * vector_of(c), warps = SUMS_THREADS / 32, size = sum_size(type);
  if (args.N <= FEW_ROWS)
    return launch(place, COLUMN_SUMS_OF_FEW, c,
                  {blocks_for(args.C, 2 * vector_of(c)), FEW_ROWS_THREADS, FEW_ROWS_THREADS / 32 * 2 * vector_of(c) * size},
                  &args);
  const long long tiles = blocks_for(args.C, columns);
  args.splits = std::min(std::max(SUMS_BLOCKS / std::max(tiles, 1ll), 1ll), blocks_for(args.N, 4 * warps));
  args.partial = place.scratch(args.splits * args.C * size);
  launch(place, COLUMN_SUMS, c, {tiles * args.splits, SUMS_THREADS, warps * columns * size}, &args);
  finish_sums(place, type, args);
}

void attend(const Place& place, Type type, long long R, const AttendArgs& args) {
  if (R > ATTEND_WIDEST)
    throw std::runtime_error("lightconv: attend takes heads of at most " + std::to_string(ATTEND_WIDEST) +
                             " channels; got " + std::to_string(R));
  Case c{};
  c.type = type, c.R = static_cast<int>(R), c.mask = args.padding != nullptr;
  c.aligned = aligned({args.query, args.keys, args.values, args.out});
  launch(place, ATTEND, c, {blocks_for(args.N, ATTEND_THREADS / 32) * args.H, ATTEND_THREADS, 0}, &args);
}

void candidates(const Place& place, Type type, int count, CandidateArgs args) {
  if (count < 1 || count > MOST_CANDIDATES || args.beams > MOST_BEAMS || count > args.V)
    throw std::runtime_error("lightconv: step_candidates takes 1 to " + std::to_string(MOST_CANDIDATES) +
                             " continuations, no more than words, of up to " + std::to_string(MOST_BEAMS) + " hypotheses");
  args.kept = static_cast<float*>(place.scratch(sizeof(float) * args.N * count));
  args.kept_words = static_cast<long long*>(place.scratch(sizeof(long long) * args.N * count));
  Case c{};
  c.type = type, c.K = count, c.aligned = true;
  const uintptr_t places = reinterpret_cast<uintptr_t>(args.logits) | static_cast<uintptr_t>(args.V) * size_of(type);
  c.R = power_of_two_in(static_cast<int>(places % 16), 16) / size_of(type);
  const int warps = CANDIDATE_THREADS / 32;
  launch(place, CANDIDATES, c, {args.N, CANDIDATE_THREADS, warps * (8 + 16)}, &args);
  Case of_sentences{};
  of_sentences.type = type, of_sentences.K = count;
  launch(place, CANDIDATES_FINISH, of_sentences, {args.N / args.beams, 32, 0}, &args);
}

void decide(const Place& place, const DecideArgs& args) {
  Case c{};
  c.type = Type::f64;
  launch(place, UPDATE_DECIDE, c, {1, 32, 0}, &args);
}

void adam(const Place& place, Type type, const AdamArgs& args) {
  Case c{};
  c.type = type;
  launch(place, ADAM_STEP, c, {blocks_for(args.N / 8, 256), 256, 0}, &args);
}

}  // namespace lightconv::cuda
