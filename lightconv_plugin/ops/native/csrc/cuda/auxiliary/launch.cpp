#include "cuda/auxiliary/launch.h"

#include <cstdint>
#include <stdexcept>

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
  const int warps = LOSS_THREADS / 32, sum_size = type == Type::f64 ? 8 : 4;
  launch(place, SMOOTHED_NLL, case_of(type, args), {args.N, LOSS_THREADS, warps * 3 * sum_size}, &args);
  Case of_sums{};
  of_sums.type = Type::f64;
  launch(place, SMOOTHED_NLL_SUM, of_sums, {1, LOSS_THREADS, warps * 2 * 8}, &args);
}

void loss_backward(const Place& place, Type type, const LossArgs& args) {
  launch(place, SMOOTHED_NLL_BACKWARD, case_of(type, args), {args.N, LOSS_THREADS, 0}, &args);
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
