#include "cuda/auxiliary/launch.h"

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "cuda/auxiliary/args.h"
#include "cuda/kernels.h"

namespace lightconv::cuda {
namespace {

const Kernel GLU{"glu", "auxiliary/glu", "GluArgs", "glu_mask_forward"};
const Kernel GLU_BACKWARD{"glu_backward", "auxiliary/glu", "GluArgs", "glu_mask_backward"};
const Kernel SMOOTHED_NLL{"smoothed_nll", "auxiliary/loss", "LossArgs", "smoothed_nll_forward"};
const Kernel SMOOTHED_NLL_SUM{"smoothed_nll_sum", "auxiliary/loss", "LossArgs", "smoothed_nll_forward_sum"};
const Kernel SMOOTHED_NLL_BACKWARD{"smoothed_nll_backward", "auxiliary/loss", "LossArgs", "smoothed_nll_backward"};

void gate(const Place& place, const Kernel& kernel, Type type, GluArgs args, std::initializer_list<const void*> pointers) {
  if (args.C > 0x7fffffff) throw std::runtime_error("lightconv: glu takes at most 2147483647 channels");
  Case c{};
  c.type = type, c.R = static_cast<int>(args.C), c.mask = args.mask != nullptr, c.aligned = aligned(pointers);
  launch(place, kernel, c, {blocks_for(args.T * args.B * (args.C / vector_of(c)), 256), 256, 0}, &args);
}

// R: the widest vector that divides every row of the logits and of `out`, wherever they begin.
Case case_of(const Rows& rows, const void* out) {
  const uintptr_t steps = static_cast<uintptr_t>(rows.V | rows.stride) * size_of(rows.type);
  const uintptr_t places = reinterpret_cast<uintptr_t>(rows.logits) | reinterpret_cast<uintptr_t>(out);
  Case c{};
  c.type = rows.type, c.aligned = true;
  c.R = power_of_two_in(static_cast<int>((steps | places) % 16), 16) / size_of(c.type);
  return c;
}

LossArgs args_of(const Rows& rows) {
  LossArgs args{};
  args.logits = rows.logits, args.target = rows.target;
  args.N = rows.N, args.V = rows.V, args.stride = rows.stride, args.ignore = rows.ignore;
  return args;
}

}  // namespace

void glu(const Place& place, Type type, long long T, long long B, long long C, const void* x, const bool* mask, void* out) {
  gate(place, GLU, type, {x, nullptr, mask, out, T, B, C}, {x, out});
}

void glu_backward(const Place& place, Type type, long long T, long long B, long long C, const void* grad, const void* x,
                  const bool* mask, void* out) {
  gate(place, GLU_BACKWARD, type, {x, grad, mask, out, T, B, C}, {x, grad, out});
}

void loss(const Place& place, const Rows& rows, double* log_sums, double* sums) {
  LossArgs args = args_of(rows);
  args.log_sums = log_sums, args.sums = sums;
  args.terms = static_cast<double*>(place.scratch(sizeof(double) * 2 * rows.N));
  const int warps = LOSS_THREADS / 32, sum_size = rows.type == Type::f64 ? 8 : 4;
  launch(place, SMOOTHED_NLL, case_of(rows, nullptr), {rows.N, LOSS_THREADS, warps * 3 * sum_size}, &args);
  Case of_sums{};
  of_sums.type = Type::f64;
  launch(place, SMOOTHED_NLL_SUM, of_sums, {1, LOSS_THREADS, warps * 2 * 8}, &args);
}

void loss_backward(const Place& place, const Rows& rows, const void* grad, const double* log_sums, double nll_share,
                   double all_share, void* out) {
  LossArgs args = args_of(rows);
  args.grad = grad, args.log_sums = const_cast<double*>(log_sums), args.out = out;
  args.nll_share = nll_share, args.all_share = all_share;
  launch(place, SMOOTHED_NLL_BACKWARD, case_of(rows, out), {rows.N, LOSS_THREADS, 0}, &args);
}

}  // namespace lightconv::cuda
