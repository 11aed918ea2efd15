// LightConv and DynamicConv on a CPU: checks, threads, sums over units.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace lightconv {
namespace {

#include "cpu/types.inl"

Conv describe(const Tensor& x, const Tensor& weight, int64_t padding_l, bool softmax, double dropconnect,
              const std::optional<Tensor>& seed, const std::optional<Tensor>& offsets) {
  const ConvSizes sizes = check_conv(x, weight, padding_l, dropconnect, seed);
  Conv conv{};
  conv.T = sizes.T, conv.B = sizes.B, conv.C = sizes.C, conv.H = sizes.H, conv.K = sizes.K;
  conv.step = is_batch_first(x) ? 1 : sizes.B, conv.sentence = is_batch_first(x) ? sizes.T : 1;
  conv.dynamic = sizes.dynamic, conv.padding_l = padding_l, conv.softmax = softmax;
  conv.dropconnect = probability_of(dropconnect);
  if (dropconnect > 0.0) conv.seed = static_cast<uint64_t>(*static_cast<const int64_t*>(seed->const_data_ptr()));
  conv.type = scalar_of(x);
  conv.x = x.const_data_ptr(), conv.weight = weight.const_data_ptr();
  if (!offsets.has_value()) return conv;
  STD_TORCH_CHECK(offsets->dim() == 1 && offsets->size(0) > 0 && offsets->scalar_type() == ScalarType::Long &&
                      offsets->is_contiguous() && conv.B == 1,
                  "lightconv: expected offsets (N + 1,), int64 and contiguous, of packed x (T, 1, C)");
  conv.offsets = static_cast<const int64_t*>(offsets->const_data_ptr()), conv.sentences = offsets->size(0) - 1;
  const int64_t* end = conv.offsets + conv.sentences;
  STD_TORCH_CHECK(*conv.offsets == 0 && *end == conv.T && std::is_sorted(conv.offsets, end + 1),
                  "lightconv: the offsets do not rise from 0 to T");
  return conv;
}

// LightConv's kernels, normalised, (H, K) in float64: few numbers, made once a call.
std::vector<double> light_kernels(const Conv& conv) {
  std::vector<double> kernels(conv.H * conv.K);
  by_type(conv.type, [&]<class S>(S) {
    for (size_t i = 0; i < kernels.size(); ++i) kernels[i] = load(static_cast<const S*>(conv.weight)[i]);
  });
  if (!conv.softmax) return kernels;
  for (double* row = kernels.data(); row < kernels.data() + kernels.size(); row += conv.K) {
    double most = row[0], total = 0;
    for (int64_t j = 1; j < conv.K; ++j) most = std::max(most, row[j]);
    for (int64_t j = 0; j < conv.K; ++j) total += row[j] = std::exp(row[j] - most);
    for (int64_t j = 0; j < conv.K; ++j) row[j] /= total;
  }
  return kernels;
}

// Kernels in the type that sums are taken in, alive as long as this.
struct LightKernels {
  std::vector<double> wide;
  std::vector<float> narrow;

  explicit LightKernels(Conv& conv) {
    if (conv.dynamic) return;
    wide = light_kernels(conv);
    narrow.assign(wide.begin(), wide.end());
    conv.light = conv.type == Scalar::f64 ? static_cast<const void*>(wide.data()) : narrow.data();
  }
};

// The units of a pass, alive as long as this. Of packed sentences, those of more than Units::rows positions are cut into
// pieces of one length, and others joined to pieces of as many.
struct Work {
  std::vector<Piece> pieces;
  Units units;

  Work(const Conv& conv, bool backward) : units(kernels().units(conv, backward)) {
    if (conv.offsets == nullptr) return;
    int64_t joined = units.rows;
    for (int64_t b = 0; b < conv.sentences; ++b) {
      const int64_t length = conv.offsets[b + 1] - conv.offsets[b];
      joined += length;
      if (joined <= units.rows && !pieces.empty()) {
        pieces.back().b_end = b + 1;
        continue;
      }
      joined = length;
      const int64_t count = std::max<int64_t>(1, (length + units.rows - 1) / units.rows);
      const int64_t rows = count > 1 ? (length + count - 1) / count : units.rows;
      for (int64_t i = 0; i < count; ++i) pieces.push_back({b, b + 1, i * rows, rows});
    }
    units.pieces = pieces.data(), units.partials = static_cast<int64_t>(pieces.size());
    units.count = units.groups * units.partials;
  }
};

// Shares the units out to torch's threads; each has scratch memory that it keeps from call to call.
void share_out(const Units& units, const std::function<void(void*, int64_t, int64_t)>& work) {
  torch::stable::parallel_for(0, units.count, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<std::byte> scratch;
    if (scratch.size() < units.scratch) scratch.resize(units.scratch);
    work(scratch.data(), begin, end);
  });
}

Tensor forward(const Tensor& x_any, const Tensor& weight_any, int64_t padding_l, bool softmax, double dropconnect,
               std::optional<Tensor> seed, std::optional<Tensor> offsets) {
  const bool batch_first = is_batch_first(x_any);
  const Tensor x = in_order(x_any, batch_first), weight = in_order(weight_any, batch_first);
  Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed, offsets);
  Tensor out = empty_in_order(x, batch_first, x.scalar_type());
  if (out.numel() == 0) return out;
  const LightKernels light(conv);
  const Work work(conv, false);
  void* to = out.mutable_data_ptr();
  share_out(work.units, [&](void* scratch, int64_t begin, int64_t end) {
    kernels().forward(conv, work.units, to, scratch, begin, end);
  });
  return out;
}

// The sum over the units in their order, through the softmax, to the gradient of the logits (H, K).
template <class A>
void finish_light(const Conv& conv, const Units& units, const std::vector<A>& partials, void* grad_weight) {
  const int64_t size = conv.H * conv.K;
  std::vector<double> total(size);
  for (int64_t unit = 0; unit < units.partials; ++unit)
    for (int64_t i = 0; i < size; ++i) total[i] += partials[unit * size + i];
  if (conv.softmax) {
    const std::vector<double> kernels = light_kernels(conv);
    for (int64_t first = 0; first < size; first += conv.K) {
      double inner = 0;
      for (int64_t i = first; i < first + conv.K; ++i) inner += kernels[i] * total[i];
      for (int64_t i = first; i < first + conv.K; ++i) total[i] = kernels[i] * (total[i] - inner);
    }
  }
  by_type(conv.softmax || conv.type == Scalar::f64 ? conv.type : Scalar::f32, [&]<class S>(S) {
    for (int64_t i = 0; i < size; ++i) store(static_cast<S*>(grad_weight)[i], static_cast<Sums<S>>(total[i]));
  });
}

template <class A>
void backward_as(const Conv& conv, Gradients gradients, void* light_gradient) {
  const Work work(conv, true);
  const Units& units = work.units;
  std::vector<A> partials(light_gradient == nullptr ? 0 : units.partials * conv.H * conv.K);
  if (light_gradient != nullptr) gradients.light_partials = partials.data();
  share_out(units, [&](void* scratch, int64_t begin, int64_t end) {
    kernels().backward(conv, units, gradients, scratch, begin, end);
  });
  if (light_gradient != nullptr) finish_light(conv, units, partials, light_gradient);
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_any, const Tensor& x_any, const Tensor& weight_any,
                                    int64_t padding_l, bool softmax, double dropconnect, std::optional<Tensor> seed,
                                    bool need_x, bool need_weight, std::optional<Tensor> offsets) {
  const bool batch_first = is_batch_first(x_any);
  const Tensor x = in_order(x_any, batch_first), weight = in_order(weight_any, batch_first);
  const Tensor grad = in_order(grad_any, batch_first);
  Conv conv = describe(x, weight, padding_l, softmax, dropconnect, seed, offsets);
  STD_TORCH_CHECK(grad.dim() == 3 && grad.size(0) == conv.T && grad.size(1) == conv.B && grad.size(2) == conv.C &&
                      grad.scalar_type() == x.scalar_type(),
                  "lightconv: the gradient has another shape or type than x");
  const Tensor none = torch::stable::new_empty(x, {0});
  Tensor grad_x = need_x ? empty_in_order(x, batch_first, x.scalar_type()) : none;
  const ScalarType type = weight_gradient_type(x, weight, softmax);
  Tensor grad_weight = !need_weight ? none
                       : x.numel() > 0 ? empty_in_order(weight, batch_first, type)
                                       : torch::stable::new_zeros(weight, weight.sizes(), type);
  if (x.numel() == 0 || !(need_x || need_weight)) return {grad_x, grad_weight};
  const LightKernels light(conv);
  Gradients gradients{grad.const_data_ptr(), need_x ? grad_x.mutable_data_ptr() : nullptr, nullptr, nullptr};
  void* weight_gradient = need_weight ? grad_weight.mutable_data_ptr() : nullptr;
  if (conv.dynamic) gradients.weight = weight_gradient, weight_gradient = nullptr;
  if (conv.type == Scalar::f64)
    backward_as<double>(conv, gradients, weight_gradient);
  else
    backward_as<float>(conv, gradients, weight_gradient);
  return {grad_x, grad_weight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("light_conv", TORCH_BOX(&forward));
  m.impl("dynamic_conv", TORCH_BOX(&forward));
  m.impl("light_conv_backward", TORCH_BOX(&backward));
  m.impl("dynamic_conv_backward", TORCH_BOX(&backward));
}

}  // namespace lightconv
