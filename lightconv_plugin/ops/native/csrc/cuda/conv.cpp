// LightConv, DynamicConv and their step on CUDA tensors: which kernel, cut how, with which arguments.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "conv.h"
#include "cuda/args.h"
#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

// x (T, B, C = H * R), logits (H, K) or, dynamic, (T, B, H, K), with their rows in one order; see args.h.
struct Conv {
  long long T, B, H, R, K, padding_l, step, sentence;
  Type type;
  bool dynamic, softmax;
  float dropconnect;      // probability of dropping; 0: none
  const long long* seed;  // on the device; not read without DropConnect
  const void* x;
  const void* logits;
};

// The kernels of a convolution and of its step.
const Kernel CONV{"conv", "conv", "ConvArgs", "conv_"};
const Kernel BAND{"band", "band", "ConvArgs", "conv_"};
const Kernel ROW_SUMS{"row_sums", "general", "GeneralArgs", "conv_row_sums"};
const Kernel GRAD_WEIGHT{"grad_weight", "grad_weight", "ConvArgs", "conv_grad_weight"};
const Kernel BACKWARD{"backward", "backward", "ConvArgs", "conv_backward"};
const Kernel FINISH{"finish", "general", "FinishArgs", "conv_grad_weight_finish"};
const Kernel GENERAL_WEIGHTS{"general_weights", "general", "GeneralArgs", "conv_general_weights"};
const Kernel GENERAL_CONV{"general_conv", "general", "GeneralArgs", "conv_general_"};
const Kernel GENERAL_GRAD_DYNAMIC{"general_grad_dynamic", "general", "GeneralArgs", "conv_general_grad_weight"};
const Kernel GENERAL_GRAD_LIGHT{"general_grad_light", "general", "GeneralArgs", "conv_general_grad_weight"};
const Kernel STEP{"step", "step", "StepArgs", "conv_step"};
const Kernel ADVANCE{"advance", "step", "StepArgs", "advance_step"};

const int CUT_WIDTH = 4096;     // wider kernels take the general kernels
const int SPLIT_BLOCKS = 1024;  // of the first stage of LightConv's weight gradient, all heads together
const int BOTH_BLOCKS = 2048;   // likewise where grad_x comes with it
const int GENERAL_THREADS = 128;

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

bool has_tensor_cores(const Place& place, const Conv& conv) {
  return size_of(conv.type) == 2 && device(place.device).capability >= 80;
}

struct Positions {
  int least, most;  // of a block, if they fit

  int of(long long T) const { return larger(least, power_of_two_from(static_cast<int>(std::min<long long>(T, most)))); }
};

// conv's case with the positions of a block that its T asks for, or as many as fit, at least `fewest`; positions 0: none do.
template <class Fits>
Case cut(const Conv& conv, bool is_aligned, int fewest, const Fits& fits, const Positions& wanted = {32, 64}) {
  Case c = case_of(conv);
  if (!can_be_cut(conv)) return c;
  c.K = static_cast<int>(conv.K), c.R = static_cast<int>(conv.R), c.H = static_cast<int>(conv.H);
  c.aligned = is_aligned;
  for (c.positions = wanted.of(conv.T); c.positions >= fewest; c.positions /= 2)
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
    launch(place_, GENERAL_CONV, c, all(conv_.T * conv_.B * conv_.H * conv_.R), &args);
  }

  void grad_logits(const void* grad, void* out) {
    GeneralArgs args = prepare();
    const Case c = case_of(conv_);
    args.grad = grad, args.out = out;
    if (conv_.dynamic) {
      args.products = place_.scratch(conv_.T * conv_.B * conv_.H * conv_.K * sum_size());
      launch(place_, GENERAL_GRAD_DYNAMIC, c, all(conv_.T * conv_.B * conv_.H * 32), &args);
      return;
    }
    args.splits = std::clamp<long long>(SPLIT_BLOCKS / conv_.H, 1, conv_.T * conv_.B);
    args.products = place_.scratch(args.splits * conv_.H * conv_.K * sum_size());
    Case stage = c;
    stage.softmax = false;
    launch(place_, GENERAL_GRAD_LIGHT, stage, {args.splits * conv_.H, GENERAL_THREADS, 0}, &args);
    finish(place_, conv_, args.products, static_cast<int>(args.splits), out);
  }

  // Of each row of logits: see row_sums in general.cuh.
  const float* row_sums() {
    if (row_sums_ == nullptr) {
      const long long rows = conv_.dynamic ? conv_.T * conv_.B * conv_.H : conv_.H;
      GeneralArgs args{};
      args.logits = conv_.logits, args.T = conv_.T, args.B = conv_.B, args.H = conv_.H, args.K = conv_.K;
      args.weight = row_sums_ = static_cast<float*>(place_.scratch(rows * 2 * sizeof(float)));
      Case c{};
      c.type = conv_.type, c.dynamic = conv_.dynamic, c.aligned = aligned({conv_.logits});
      launch(place_, ROW_SUMS, c, all(rows * 32), &args);
    }
    return row_sums_;
  }

  static void finish(const Place& place, const Conv& conv, const void* partial, int splits, void* out) {
    Case c{};
    c.type = conv.softmax || conv.type == Type::f64 ? conv.type : Type::f32;  // as weight_gradient_type says
    c.softmax = conv.softmax, c.K = static_cast<int>(conv.K), c.H = static_cast<int>(conv.H);
    const FinishArgs args{partial, conv.logits, out, splits};
    const int warps = finish_warps(c.K), sum_size = c.type == Type::f64 ? 8 : 4;
    launch(place, FINISH, c, {conv.H, 32 * warps, warps > 1 ? warps * c.K * sum_size : 0}, &args);
  }

 private:
  static Grid all(long long items) { return {blocks_for(items, GENERAL_THREADS), GENERAL_THREADS, 0}; }
  long long sum_size() const { return conv_.type == Type::f64 ? 8 : 4; }

  GeneralArgs prepare() {
    GeneralArgs args{};
    args.logits = conv_.logits, args.x = conv_.x, args.dropconnect = dropping(conv_.dropconnect, conv_.seed);
    args.T = conv_.T, args.B = conv_.B, args.H = conv_.H, args.R = conv_.R, args.K = conv_.K;
    args.padding_l = conv_.padding_l, args.step = conv_.step, args.sentence = conv_.sentence;
    if (weight_ == nullptr) {
      const long long rows = conv_.dynamic ? conv_.T * conv_.B * conv_.H : conv_.H;
      args.weight = weight_ = place_.scratch(rows * conv_.K * sum_size());
      Case c = case_of(conv_);
      c.drop = false;
      launch(place_, GENERAL_WEIGHTS, c, all(rows * 32), &args);
    }
    args.weight = weight_;
    return args;
  }

  const Place& place_;
  const Conv& conv_;
  void* weight_ = nullptr;
  float* row_sums_ = nullptr;
};

ConvArgs args_of(const Conv& conv, const Case& c, General& general) {
  ConvArgs args{};
  args.x = conv.x, args.logits = conv.logits, args.dropconnect = dropping(conv.dropconnect, conv.seed);
  if (bands_of(c) > 1 && c.softmax) args.row_sums = general.row_sums();
  args.T = static_cast<int>(conv.T), args.B = static_cast<int>(conv.B);
  args.padding_l = static_cast<int>(conv.padding_l);
  args.step = static_cast<int>(conv.step), args.sentence = static_cast<int>(conv.sentence);
  return args;
}

bool convolve_by_bands(const Place& place, const Conv& conv, General& general, const void* x, void* out, bool flip) {
  if (!has_tensor_cores(place, conv)) return false;
  const bool per_position = conv.dynamic || conv.dropconnect > 0.0;
  const Case c = cut(conv, aligned({x, conv.logits, out}), MMA_POSITIONS, [flip](Case& c) {
    c.flip = flip, c.tensor_cores = true;
    return band_tile(c).shared_bytes > 0;
  }, {MMA_POSITIONS, per_position ? 64 : 128});
  if (c.positions == 0) return false;
  const BandTile tile = band_tile(c);
  ConvArgs args = args_of(conv, c, general);
  args.x = x, args.out = out;
  launch(place, BAND, c, {blocks_for(conv.T, c.positions) * tile.groups * conv.B, tile.threads, tile.shared_bytes}, &args);
  return true;
}

void convolve(const Place& place, const Conv& conv, General& general, const void* x, void* out, bool flip) {
  if (convolve_by_bands(place, conv, general, x, out, flip)) return;
  const Case c = cut(conv, aligned({x, conv.logits, out}), RUN, [flip](Case& c) {
    c.flip = flip;
    return conv_tile(c).shared_bytes > 0;
  });
  if (c.positions == 0) return general.convolve(x, out, flip);
  const ConvTile tile = conv_tile(c);
  ConvArgs args = args_of(conv, c, general);
  args.x = x, args.out = out;
  const long long groups = static_cast<long long>(ceil_div(c.H, tile.heads)) * tile.parts;
  launch(place, CONV, c, {blocks_for(conv.T, c.positions) * groups * conv.B, tile.threads, tile.shared_bytes}, &args);
}

// LightConv's partial sums: how many, and room for them.
void split(const Place& place, const Conv& conv, long long wanted, long long blocks, ConvArgs& args) {
  args.splits = static_cast<int>(std::clamp<long long>(wanted, 1, blocks));
  args.partial = static_cast<float*>(place.scratch(sizeof(float) * args.splits * conv.H * conv.K));
}

void gradient_of_weight(const Place& place, const Conv& conv, General& general, const void* grad, void* out) {
  const bool tensor_cores = has_tensor_cores(place, conv);
  const Case c = cut(conv, aligned({grad, conv.x, conv.logits, out}), tensor_cores ? MMA_POSITIONS : GRAD_POSITIONS,
                     [tensor_cores](Case& c) {
                       c.tensor_cores = tensor_cores;
                       return grad_tile(c).shared_bytes > 0;
                     });
  if (c.positions == 0) return general.grad_logits(grad, out);
  const GradTile tile = grad_tile(c);
  const long long groups = ceil_div(c.H, tile.heads), blocks = blocks_for(conv.T, c.positions) * conv.B;
  Case stage = c;
  if (!c.dynamic) stage.softmax = false;
  ConvArgs args = args_of(conv, stage, general);
  args.grad = grad, args.grad_logits = out;
  if (c.dynamic)
    return launch(place, GRAD_WEIGHT, c, {blocks * groups, tile.threads, tile.shared_bytes}, &args);
  split(place, conv, SPLIT_BLOCKS / groups / bands_of(c), blocks, args);
  launch(place, GRAD_WEIGHT, stage, {args.splits * groups * bands_of(c), tile.threads, tile.shared_bytes}, &args);
  General::finish(place, conv, args.partial, args.splits, out);
}

bool backward_at_once(const Place& place, const Conv& conv, General& general, const void* grad, void* grad_x,
                      void* grad_logits) {
  if (!has_tensor_cores(place, conv)) return false;
  const Positions wanted{MMA_POSITIONS, 64};
  const int fewest = smaller(32, wanted.of(conv.T));  // with fewer of many, two passes read less
  const Case c = cut(conv, aligned({grad, conv.x, conv.logits, grad_x}), fewest, [](Case& c) {
    c.flip = c.both = c.tensor_cores = true;
    return band_tile(c).shared_bytes > 0;
  }, wanted);
  if (c.positions == 0) return false;
  const BandTile tile = band_tile(c);
  const long long blocks = blocks_for(conv.T, c.positions) * conv.B;
  ConvArgs args = args_of(conv, c, general);
  args.grad = grad, args.out = grad_x, args.grad_logits = grad_logits, args.splits = static_cast<int>(blocks);
  if (!c.dynamic) split(place, conv, BOTH_BLOCKS / tile.groups, blocks, args);
  launch(place, BACKWARD, c, {static_cast<long long>(args.splits) * tile.groups, tile.threads, tile.shared_bytes}, &args);
  if (!c.dynamic) General::finish(place, conv, args.partial, args.splits, grad_logits);
  return true;
}

Conv describe(const Operands& given) {
  STD_TORCH_CHECK(!given.offsets.has_value(), "lightconv: packed sentences have kernels on a CPU alone");
  check_same(given.x, given.weight, "weight");
  Conv conv = sizes_of<Conv>(given);
  conv.R = given.C / given.H, conv.type = type_of(given.x);
  if (conv.dropconnect > 0) {
    check_same(given.x, *given.seed, "seed");
    conv.seed = static_cast<const long long*>(given.seed->const_data_ptr());
  }
  return conv;
}

void run_forward(const Operands& given, void* out) {
  Memory memory(given.x);
  const Place place = memory.place();
  const Conv conv = describe(given);
  General general(place, conv);
  convolve(place, conv, general, conv.x, out, false);
}

void run_backward(const Operands& given, const Tensor& grad, void* grad_x, void* grad_weight) {
  check_same(given.x, grad, "the gradient");
  Memory memory(given.x);
  const Place place = memory.place();
  const Conv conv = describe(given);
  General general(place, conv);
  const void* from = grad.const_data_ptr();
  if (grad_x != nullptr && grad_weight != nullptr && backward_at_once(place, conv, general, from, grad_x, grad_weight))
    return;
  if (grad_x != nullptr) convolve(place, conv, general, from, grad_x, true);
  if (grad_weight != nullptr) gradient_of_weight(place, conv, general, from, grad_weight);
}

Tensor conv_step(const Tensor& x_any, const Tensor& weight_any, Tensor ring, Tensor ancestors, Tensor position,
                 bool softmax) {
  const Tensor x = torch::stable::contiguous(x_any), weight = torch::stable::contiguous(weight_any);
  const StepSizes sizes = check_step(x, weight, ring, ancestors, position);
  check_same(x, weight, "weight");
  check_same(x, ring, "ring");
  check_same(x, ancestors, "ancestors");
  check_same(x, position, "position");
  Tensor out = torch::stable::new_empty(x, x.sizes());
  const StepArgs args{x.const_data_ptr(), weight.const_data_ptr(), ring.mutable_data_ptr(),
                      static_cast<int*>(ancestors.mutable_data_ptr()),
                      static_cast<long long*>(position.mutable_data_ptr()), out.mutable_data_ptr(),
                      static_cast<int>(sizes.N), static_cast<int>(sizes.M)};
  Case c{};
  c.type = type_of(x), c.dynamic = sizes.dynamic, c.softmax = softmax;
  c.K = static_cast<int>(sizes.K), c.R = static_cast<int>(sizes.C / sizes.H), c.H = static_cast<int>(sizes.H);
  c.aligned = aligned({args.x, args.ring, args.out});
  const StepTile tile = step_tile(c);
  if (tile.shared_bytes == 0)
    throw std::runtime_error("lightconv: a decoding step takes kernels of up to 3072 (float64) or 4096 weights; got " +
                             std::to_string(c.K));
  Memory memory(x);
  const Place place = memory.place();
  launch(place, STEP, c, {static_cast<long long>(args.N) * ceil_div(c.H, tile.heads), tile.threads, tile.shared_bytes}, &args);
  launch(place, ADVANCE, Case{}, {1, 1, 0}, &args);
  return out;
}

void cuda_configure(std::string sources, std::string nvrtc, std::string cache, std::string fingerprint) {
  configure({sources, nvrtc, cache, fingerprint});
}

int64_t cuda_gather(bool begin) { return gather(begin); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, LIGHTCONV_GPU, m) {
  m.impl("light_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("dynamic_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("light_conv_backward", TORCH_BOX(&backward<&run_backward>));
  m.impl("dynamic_conv_backward", TORCH_BOX(&backward<&run_backward>));
  m.impl("conv_step", TORCH_BOX(&conv_step));
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cuda_configure", TORCH_BOX(&cuda_configure));
  m.impl("cuda_gather", TORCH_BOX(&cuda_gather));
}

}  // namespace lightconv::cuda
