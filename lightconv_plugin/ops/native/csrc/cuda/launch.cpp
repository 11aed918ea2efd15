#include "cuda/launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "cuda/args.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

namespace lightconv::cuda {
namespace {

const int CUT_WIDTH = 64;      // wider kernels take the general kernels: a row of weights no longer fits the registers
const int SPLIT_BLOCKS = 1024;  // of the first stage of LightConv's weight gradient, all heads together
const int GENERAL_THREADS = 128;

bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

long long blocks_for(long long items, long long per_block) { return (items + per_block - 1) / per_block; }

DropConnect dropconnect_of(const Conv& conv) {
  const double p = static_cast<float>(conv.dropconnect);  // as the CPU's kernels have it
  return {conv.seed, static_cast<unsigned int>(std::min(std::llround(p * 4294967296.0), 4294967295ll)),
          1.0 / (1.0 - p)};
}

Case case_of(const Conv& conv) {
  Case c{};
  c.type = conv.type;
  c.dynamic = conv.dynamic, c.softmax = conv.softmax, c.drop = conv.dropconnect > 0.0;
  return c;
}

bool can_be_cut(const Conv& conv) {
  return conv.type != Type::f64 && conv.K <= CUT_WIDTH && conv.H * conv.R <= (1 << 24) && conv.T <= (1 << 30) &&
         conv.B <= (1 << 30);
}

// conv's case with the most positions of a block that fit, at least `fewest`; positions 0: none do.
template <class Fits> Case cut(const Conv& conv, bool is_aligned, int fewest, const Fits& fits) {
  Case c = case_of(conv);
  if (!can_be_cut(conv)) return c;
  c.K = static_cast<int>(conv.K), c.padding_l = static_cast<int>(conv.padding_l);
  c.R = static_cast<int>(conv.R), c.H = static_cast<int>(conv.H);
  c.aligned = is_aligned;
  for (c.positions = conv.T > 32 ? 64 : 32; c.positions >= fewest; c.positions /= 2)
    if (fits(c)) return c;
  c.positions = 0;
  return c;
}

// The general kernels on one convolution; the normalised weights are made when first asked for.
class General {
 public:
  General(const Place& place, const Conv& conv) : place_(place), conv_(conv) {}

  void convolve(const void* x, void* out, bool flip) {
    GeneralArgs args = prepare();
    args.x = x, args.out = out;
    Case c = case_of(conv_);
    c.flip = flip, c.softmax = false;
    launch(place_, Kernel::general_conv, c, all(conv_.T * conv_.B * conv_.H * conv_.R), &args);
  }

  void grad_logits(const void* grad, void* out) {
    GeneralArgs args = prepare();
    const Case c = case_of(conv_);
    args.grad = grad, args.out = out;
    if (conv_.dynamic) {
      args.products = place_.scratch(conv_.T * conv_.B * conv_.H * conv_.K * sum_size());
      launch(place_, Kernel::general_grad_dynamic, c, all(conv_.T * conv_.B * conv_.H * 32), &args);
      return;
    }
    args.splits = std::clamp<long long>(SPLIT_BLOCKS / conv_.H, 1, conv_.T * conv_.B);
    args.products = place_.scratch(args.splits * conv_.H * conv_.K * sum_size());
    Case stage = c;
    stage.softmax = false;
    launch(place_, Kernel::general_grad_light, stage, {args.splits * conv_.H, GENERAL_THREADS, 0}, &args);
    finish(place_, conv_, args.products, static_cast<int>(args.splits), out);
  }

  static void finish(const Place& place, const Conv& conv, const void* partial, int splits, void* out) {
    Case c{};
    c.type = conv.type, c.softmax = conv.softmax, c.K = static_cast<int>(conv.K), c.H = static_cast<int>(conv.H);
    const FinishArgs args{partial, conv.logits, out, splits};
    launch(place, Kernel::finish, c, {conv.H, 32, 0}, &args);
  }

 private:
  static Grid all(long long items) { return {blocks_for(items, GENERAL_THREADS), GENERAL_THREADS, 0}; }
  long long sum_size() const { return conv_.type == Type::f64 ? 8 : 4; }

  GeneralArgs prepare() {
    GeneralArgs args{};
    args.logits = conv_.logits, args.x = conv_.x, args.dropconnect = dropconnect_of(conv_);
    args.T = conv_.T, args.B = conv_.B, args.H = conv_.H, args.R = conv_.R, args.K = conv_.K;
    args.padding_l = conv_.padding_l;
    if (weight_ == nullptr) {
      const long long rows = conv_.dynamic ? conv_.T * conv_.B * conv_.H : conv_.H;
      args.weight = weight_ = place_.scratch(rows * conv_.K * sum_size());
      Case c = case_of(conv_);
      c.drop = false;
      launch(place_, Kernel::general_weights, c, all(rows * 32), &args);
    }
    args.weight = weight_;
    return args;
  }

  const Place& place_;
  const Conv& conv_;
  void* weight_ = nullptr;
};

void convolve(const Place& place, const Conv& conv, General& general, const void* x, void* out, bool flip) {
  const Case c = cut(conv, aligned({x, conv.logits, out}), RUN, [flip](Case& c) {
    c.flip = flip;
    return conv_tile(c).shared_bytes > 0;
  });
  if (c.positions == 0) return general.convolve(x, out, flip);
  const ConvTile tile = conv_tile(c);
  const ConvArgs args{x, conv.logits, out, dropconnect_of(conv), static_cast<int>(conv.T), static_cast<int>(conv.B)};
  const long long groups = static_cast<long long>(ceil_div(c.H, tile.heads)) * tile.parts;
  launch(place, Kernel::conv, c, {blocks_for(conv.T, c.positions) * groups * conv.B, tile.threads, tile.shared_bytes}, &args);
}

void grad_weight(const Place& place, const Conv& conv, General& general, const void* grad, void* out) {
  const bool tensor_cores = size_of(conv.type) == 2 && device(place.device).capability >= 80;
  const Case c = cut(conv, aligned({grad, conv.x, conv.logits, out}), tensor_cores ? MMA_POSITIONS : GRAD_POSITIONS,
                     [tensor_cores](Case& c) {
                       c.tensor_cores = tensor_cores;
                       return grad_tile(c).shared_bytes > 0;
                     });
  if (c.positions == 0) return general.grad_logits(grad, out);
  const GradTile tile = grad_tile(c);
  const long long groups = ceil_div(c.H, tile.heads), blocks = blocks_for(conv.T, c.positions) * conv.B;
  GradArgs args{grad, conv.x, conv.logits, out, nullptr, dropconnect_of(conv), static_cast<int>(conv.T),
                static_cast<int>(conv.B), 0};
  if (c.dynamic)
    return launch(place, Kernel::grad_weight, c, {blocks * groups, tile.threads, tile.shared_bytes}, &args);
  args.splits = static_cast<int>(std::clamp<long long>(SPLIT_BLOCKS / groups, 1, blocks));
  args.partial = static_cast<float*>(place.scratch(sizeof(float) * args.splits * conv.H * conv.K));
  Case stage = c;
  stage.softmax = false;
  launch(place, Kernel::grad_weight, stage, {args.splits * groups, tile.threads, tile.shared_bytes}, &args);
  General::finish(place, conv, args.partial, args.splits, out);
}

void gate(const Place& place, Kernel kernel, Type type, GluArgs args, std::initializer_list<const void*> pointers) {
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

void forward(const Place& place, const Conv& conv, void* out) {
  General general(place, conv);
  convolve(place, conv, general, conv.x, out, false);
}

void backward(const Place& place, const Conv& conv, const void* grad, void* grad_x, void* grad_logits) {
  General general(place, conv);
  if (grad_x != nullptr) convolve(place, conv, general, grad, grad_x, true);
  if (grad_logits != nullptr) grad_weight(place, conv, general, grad, grad_logits);
}

void glu(const Place& place, Type type, long long T, long long B, long long C, const void* x, const bool* mask, void* out) {
  gate(place, Kernel::glu, type, {x, nullptr, mask, out, T, B, C}, {x, out});
}

void glu_backward(const Place& place, Type type, long long T, long long B, long long C, const void* grad, const void* x,
                  const bool* mask, void* out) {
  gate(place, Kernel::glu_backward, type, {x, grad, mask, out, T, B, C}, {x, grad, out});
}

void step(const Place& place, const Step& step) {
  Case c{};
  c.type = step.type, c.dynamic = step.dynamic, c.softmax = step.softmax;
  c.K = static_cast<int>(step.K), c.R = static_cast<int>(step.R), c.H = static_cast<int>(step.H);
  c.aligned = aligned({step.x, step.ring, step.out});
  const StepTile tile = step_tile(c);
  if (tile.shared_bytes == 0)
    throw std::runtime_error("lightconv: a decoding step takes kernels of up to 3072 (float64) or 4096 weights; got " +
                             std::to_string(step.K));
  const StepArgs args{step.x, step.logits, step.ring, step.ancestors, step.position, step.out,
                      static_cast<int>(step.N), static_cast<int>(step.M), static_cast<int>(step.A)};
  launch(place, Kernel::step, c, {step.N * ceil_div(c.H, tile.heads), tile.threads, tile.shared_bytes}, &args);
  Case after{};
  launch(place, Kernel::advance, after, {1, 1, 0}, &args);
}

void loss(const Place& place, const Rows& rows, double* log_sums, double* sums) {
  LossArgs args = args_of(rows);
  args.log_sums = log_sums, args.sums = sums;
  args.terms = static_cast<double*>(place.scratch(sizeof(double) * 2 * rows.N));
  const int warps = LOSS_THREADS / 32, sum_size = rows.type == Type::f64 ? 8 : 4;
  launch(place, Kernel::smoothed_nll, case_of(rows, nullptr), {rows.N, LOSS_THREADS, warps * 3 * sum_size}, &args);
  Case of_sums{};
  of_sums.type = Type::f64;
  launch(place, Kernel::smoothed_nll_sum, of_sums, {1, LOSS_THREADS, warps * 2 * 8}, &args);
}

void loss_backward(const Place& place, const Rows& rows, const void* grad, const double* log_sums, double nll_share,
                   double all_share, void* out) {
  LossArgs args = args_of(rows);
  args.grad = grad, args.log_sums = const_cast<double*>(log_sums), args.out = out;
  args.nll_share = nll_share, args.all_share = all_share;
  launch(place, Kernel::smoothed_nll_backward, case_of(rows, out), {rows.N, LOSS_THREADS, 0}, &args);
}

}  // namespace lightconv::cuda
