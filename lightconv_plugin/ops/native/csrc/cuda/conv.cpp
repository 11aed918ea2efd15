// LightConv, DynamicConv and their decoding step on CUDA tensors: chooses the kernel, its tiles and its arguments.
#include <algorithm>
#include <string>

#include "conv.h"
#include "cuda/args.h"
#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "cuda/memory.h"

namespace lightconv::cuda {
namespace {

// A convolution of x (T, B, C = H * R) with logits (H, K) or, if dynamic, (T, B, H, K). The rows of x and of dynamic
// logits have the same order in memory; see args.h.
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
const Kernel ROW_SUMS{"row_sums", "rows", "RowSumsArgs", "conv_row_sums"};
const Kernel GRAD_WEIGHT{"grad_weight", "grad_weight", "ConvArgs", "conv_grad_weight"};
const Kernel BACKWARD{"backward", "backward", "ConvArgs", "conv_backward"};
const Kernel FINISH{"finish", "rows", "FinishArgs", "conv_grad_weight_finish"};
const Kernel STEP{"step", "step", "StepArgs", "conv_step"};

const int WIDEST = 4096;        // largest K, limited by the registers of `finish`
const int SPLIT_BLOCKS = 1024;  // of the first stage of LightConv's weight gradient, for all heads together
const int BOTH_BLOCKS = 2048;   // the same, if one kernel also computes grad_x
const int ROW_THREADS = 128;    // of a block of row_sums, a warp per row

struct Positions {
  int least, most;  // of a block, if they fit

  int of(long long T) const { return larger(least, power_of_two_from(static_cast<int>(std::min<long long>(T, most)))); }
};

// Launches the kernels of one convolution. Row sums, which several kernels need, are computed on first use.
class Launcher {
 public:
  explicit Launcher(const Operands& given) : memory_(given.x), place_(memory_.place()), conv_(sizes_of<Conv>(given)) {
    STD_TORCH_CHECK(!given.offsets.has_value() && !given.state.has_value(),
                    "lightconv: packed sentences and states have kernels only for CPUs");
    check_same(given.x, given.weight, "weight");
    conv_.R = given.C / given.H, conv_.type = type_of(given.x);
    STD_TORCH_CHECK(conv_.type != Type::f64 && conv_.K <= WIDEST,
                    "lightconv: convolutions on a GPU support float32, float16, bfloat16 and at most 4096 weights");
    if (conv_.dropconnect > 0) {
      check_same(given.x, *given.seed, "seed");
      conv_.seed = static_cast<const long long*>(given.seed->const_data_ptr());
    }
    tensor_cores_ = size_of(conv_.type) == 2 && device(place_.device).capability >= 80;
  }

  void forward(void* out) { convolve(conv_.x, out, false); }

  void backward(const void* grad, void* grad_x, void* grad_logits) {
    if (grad_x != nullptr && grad_logits != nullptr && backward_at_once(grad, grad_x, grad_logits)) return;
    if (grad_logits != nullptr) gradient_of_logits(grad, grad_logits);
    if (grad_x != nullptr) convolve(grad, grad_x, true);
  }

 private:
  Case kind() const {
    Case c{};
    c.type = conv_.type;
    c.dynamic = conv_.dynamic, c.softmax = conv_.softmax, c.drop = conv_.dropconnect > 0.0;
    return c;
  }

  // Returns the case with as many positions per block as T needs and as fit, at least `fewest`. positions is 0 if none
  // fit, which happens only for kernels that use tensor cores.
  template <class Fits>
  Case cut(std::initializer_list<const void*> pointers, int fewest, const Fits& fits, const Positions& wanted = {32, 64}) {
    Case c = kind();
    c.K = static_cast<int>(conv_.K), c.R = static_cast<int>(conv_.R), c.H = static_cast<int>(conv_.H);
    c.aligned = aligned(pointers) && aligned({conv_.logits});
    for (c.positions = wanted.of(conv_.T); c.positions >= fewest; c.positions /= 2)
      if (fits(c)) return c;
    c.positions = 0;
    return c;
  }

  ConvArgs args_of(const Case& c) {
    ConvArgs args{};
    args.x = conv_.x, args.logits = conv_.logits, args.dropconnect = dropping(conv_.dropconnect, conv_.seed);
    if (bands_of(c) > 1 && c.softmax) args.row_sums = row_sums();
    args.T = static_cast<int>(conv_.T), args.B = static_cast<int>(conv_.B);
    args.padding_l = static_cast<int>(conv_.padding_l);
    args.step = static_cast<int>(conv_.step), args.sentence = static_cast<int>(conv_.sentence);
    return args;
  }

  long long blocks(const Case& c) const { return blocks_for(conv_.T, c.positions) * conv_.B; }

  // Computes the forward pass, or grad_x: the transposed convolution (`flip`) of the gradient, which is passed as x.
  void convolve(const void* x, void* out, bool flip) {
    Case c{};
    if (tensor_cores_)
      c = cut({x, out}, MMA_POSITIONS, [flip](Case& c) {
        c.flip = flip, c.tensor_cores = true;
        return band_tile(c).shared_bytes > 0;
      }, {MMA_POSITIONS, per_position(kind()) ? 64 : 128});
    if (c.positions > 0) {
      const BandTile tile = band_tile(c);
      ConvArgs args = args_of(c);
      args.x = x, args.out = out;
      return launch(place_, BAND, c, {blocks(c) * tile.groups, tile.threads, tile.shared_bytes}, &args);
    }
    c = cut({x, out}, RUN, [flip](Case& c) {
      c.flip = flip;
      return conv_tile(c).shared_bytes > 0;
    });
    const ConvTile tile = conv_tile(c);
    ConvArgs args = args_of(c);
    args.x = x, args.out = out;
    const long long groups = static_cast<long long>(ceil_div(c.H, tile.heads)) * tile.parts;
    launch(place_, CONV, c, {blocks(c) * groups, tile.threads, tile.shared_bytes}, &args);
  }

  // Computes both gradients with one kernel. Returns false if that kernel does not support the case.
  bool backward_at_once(const void* grad, void* grad_x, void* grad_logits) {
    if (!tensor_cores_) return false;
    const Positions wanted{MMA_POSITIONS, 64};
    const int fewest = smaller(32, wanted.of(conv_.T));  // with fewer, if T has more, two kernels read less
    const Case c = cut({grad, conv_.x, grad_x}, fewest, [](Case& c) {
      c.flip = c.both = c.tensor_cores = true;
      return band_tile(c).shared_bytes > 0;
    }, wanted);
    if (c.positions == 0) return false;
    const BandTile tile = band_tile(c);
    ConvArgs args = args_of(c);
    args.grad = grad, args.out = grad_x, args.grad_logits = grad_logits, args.splits = static_cast<int>(blocks(c));
    if (!c.dynamic) split(BOTH_BLOCKS / tile.groups, blocks(c), args);
    launch(place_, BACKWARD, c, {static_cast<long long>(args.splits) * tile.groups, tile.threads, tile.shared_bytes}, &args);
    if (!c.dynamic) finish(args.partial, args.splits, grad_logits);
    return true;
  }

  void gradient_of_logits(const void* grad, void* out) {
    const bool tensor_cores = tensor_cores_;
    const Case c = cut({grad, conv_.x, out}, tensor_cores ? MMA_POSITIONS : GRAD_POSITIONS, [tensor_cores](Case& c) {
      c.tensor_cores = tensor_cores;
      return grad_tile(c).shared_bytes > 0;
    });
    const GradTile tile = grad_tile(c);
    const long long groups = ceil_div(c.H, tile.heads);
    Case stage = c;
    if (!c.dynamic) stage.softmax = false;
    ConvArgs args = args_of(stage);
    args.grad = grad, args.grad_logits = out;
    if (c.dynamic)
      return launch(place_, GRAD_WEIGHT, c, {blocks(c) * groups, tile.threads, tile.shared_bytes}, &args);
    split(SPLIT_BLOCKS / groups / bands_of(c), blocks(c), args);
    launch(place_, GRAD_WEIGHT, stage, {args.splits * groups * bands_of(c), tile.threads, tile.shared_bytes}, &args);
    finish(args.partial, args.splits, out);
  }

  // Sets the number of LightConv's partial sums and allocates them. `finish` adds them up.
  void split(long long wanted, long long most, ConvArgs& args) {
    args.splits = static_cast<int>(std::clamp<long long>(wanted, 1, most));
    args.partial = static_cast<float*>(place_.scratch(sizeof(float) * args.splits * conv_.H * conv_.K));
  }

  void finish(const float* partial, int splits, void* out) {
    Case c{};
    c.type = conv_.softmax ? conv_.type : Type::f32;  // as conv.h says
    c.softmax = conv_.softmax, c.K = static_cast<int>(conv_.K), c.H = static_cast<int>(conv_.H);
    const FinishArgs args{partial, conv_.logits, out, splits};
    const int warps = finish_warps(c.K);
    launch(place_, FINISH, c, {conv_.H, 32 * warps, warps > 1 ? warps * c.K * 4 : 0}, &args);
  }

  // Returns the sums of all rows of logits; see row_sums in rows.cuh.
  float* row_sums() {
    if (row_sums_ == nullptr) {
      const long long rows = conv_.dynamic ? conv_.T * conv_.B * conv_.H : conv_.H;
      row_sums_ = static_cast<float*>(place_.scratch(rows * 2 * sizeof(float)));
      const RowSumsArgs args{conv_.logits, row_sums_, rows, conv_.K};
      Case c{};
      c.type = conv_.type, c.dynamic = conv_.dynamic, c.aligned = aligned({conv_.logits});
      launch(place_, ROW_SUMS, c, {blocks_for(rows * 32, ROW_THREADS), ROW_THREADS, 0}, &args);
    }
    return row_sums_;
  }

  Memory memory_;
  const Place place_;
  Conv conv_;
  bool tensor_cores_;
  float* row_sums_ = nullptr;
};

void run_forward(const Operands& given, void* out) { Launcher(given).forward(out); }

void run_backward(const Operands& given, const Tensor& grad, void* grad_x, void* grad_weight) {
  check_same(given.x, grad, "the gradient");
  Launcher(given).backward(grad.const_data_ptr(), grad_x, grad_weight);
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
  if (out.numel() == 0) return out;
  const StepArgs args{x.const_data_ptr(), weight.const_data_ptr(), ring.mutable_data_ptr(),
                      static_cast<int*>(ancestors.mutable_data_ptr()),
                      static_cast<long long*>(position.mutable_data_ptr()), out.mutable_data_ptr(),
                      static_cast<int>(sizes.N), static_cast<int>(sizes.M)};
  Case c{};
  c.type = type_of(x), c.dynamic = sizes.dynamic, c.softmax = softmax;
  c.K = static_cast<int>(sizes.K), c.R = static_cast<int>(sizes.C / sizes.H), c.H = static_cast<int>(sizes.H);
  c.aligned = aligned({args.x, args.ring, args.out});
  const StepTile tile = step_tile(c);
  Memory memory(x);
  const Place place = memory.place();
  launch(place, STEP, c, {static_cast<long long>(args.N) * ceil_div(c.H, tile.heads), tile.threads, tile.shared_bytes}, &args);
  return out;
}

void cuda_configure(std::string sources, std::string nvrtc, std::string cache) { configure({sources, nvrtc, cache}); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, LIGHTCONV_GPU, m) {
  m.impl("light_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("dynamic_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("conv_backward", TORCH_BOX(&backward<&run_backward>));
  m.impl("conv_step", TORCH_BOX(&conv_step));
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cuda_configure", TORCH_BOX(&cuda_configure));
  m.impl("cuda_gather", TORCH_BOX(&gather));
}

}  // namespace lightconv::cuda
