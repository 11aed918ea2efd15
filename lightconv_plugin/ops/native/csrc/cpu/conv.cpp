// LightConv and DynamicConv on a CPU: threads, sums over units, and the step of a decoder.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "conv.h"
#include "cpu/run.h"

namespace lightconv {
namespace {

#include "cpu/types.inl"

Conv describe(const Operands& given) {
  Conv conv = sizes_of<Conv>(given);
  conv.C = given.C, conv.type = scalar_of(given.x);
  if (conv.dropconnect > 0) conv.seed = *static_cast<const uint64_t*>(given.seed->const_data_ptr());
  if (given.state.has_value() && given.state->numel() > 0) {
    conv.state = given.state->const_data_ptr();
    conv.state_step = given.state_batch_first ? 1 : given.state->size(1);
    conv.state_sentence = given.state_batch_first ? conv.K - 1 : 1;
  }
  if (!given.offsets.has_value()) return conv;
  const Tensor& offsets = *given.offsets;
  STD_TORCH_CHECK(offsets.dim() == 1 && offsets.size(0) > 0 && offsets.scalar_type() == ScalarType::Long &&
                      offsets.is_contiguous() && conv.B == 1,
                  "lightconv: expected offsets (N + 1,), int64 and contiguous, of packed x (T, 1, C)");
  conv.offsets = static_cast<const int64_t*>(offsets.const_data_ptr()), conv.sentences = offsets.size(0) - 1;
  const int64_t* end = conv.offsets + conv.sentences;
  STD_TORCH_CHECK(*conv.offsets == 0 && *end == conv.T && std::is_sorted(conv.offsets, end + 1),
                  "lightconv: the offsets do not rise from 0 to T");
  return conv;
}

// Returns LightConv's kernels (H, K), after the softmax if there is one, in float64, since they are few numbers.
std::vector<double> light_kernels(const Conv& conv) {
  std::vector<double> kernels(conv.H * conv.K);
  by_type(conv.type, [&]<class S>(S) {
    for (size_t i = 0; i < kernels.size(); ++i) kernels[i] = load(static_cast<const S*>(conv.logits)[i]);
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

// Holds LightConv's kernels in float64 and float32, and sets conv.light to those of the type of sums.
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

// The units of a pass, and the pieces that they point to. Packed sentences of more than Units::rows positions are cut
// into pieces of equal length. Shorter ones are joined into pieces of at most Units::rows positions in all.
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

// Calls work(scratch, begin, end) on torch's threads for ranges of units. A thread keeps its scratch memory from call
// to call.
void share_out(const Units& units, const std::function<void(void*, int64_t, int64_t)>& work) {
  torch::stable::parallel_for(0, units.count, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<std::byte> scratch;
    if (scratch.size() < units.scratch) scratch.resize(units.scratch);
    work(scratch.data(), begin, end);
  });
}

// Asks the system for large pages for a result that has just been allocated and will be written completely. malloc maps
// results larger than 32 MiB anew at each call, and getting them in small pages takes as long as half of a backward
// pass. The request is advice, and covers only the large pages that lie completely in the result: it changes no
// contents, and nothing must be undone. If the system does not follow it, the result gets small pages as before.
void use_large_pages(void* result, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 2 << 20;
  constexpr int64_t kMapped = 32 << 20;  // malloc maps anything larger
  const uintptr_t first = (reinterpret_cast<uintptr_t>(result) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(result) + bytes) / kPage * kPage;
  if (result != nullptr && bytes > kMapped) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

void run_forward(const Operands& given, void* out) {
  Conv conv = describe(given);
  use_large_pages(out, given.x.numel() * given.x.element_size());
  const LightKernels light(conv);
  const Work work(conv, false);
  share_out(work.units, [&](void* scratch, int64_t begin, int64_t end) {
    kernels().forward(conv, work.units, out, scratch, begin, end);
  });
}

// Adds up the partial sums of the units in their order, and takes the sum through the softmax's derivative to the
// gradient of the logits (H, K).
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

void run_backward(const Operands& given, const Tensor& grad, void* grad_x, void* grad_weight) {
  Conv conv = describe(given);
  use_large_pages(grad_x, given.x.numel() * given.x.element_size());
  use_large_pages(grad_weight, given.weight.numel() * given.weight.element_size());
  const LightKernels light(conv);
  const Gradients gradients{grad.const_data_ptr(), grad_x, given.grad_state, conv.dynamic ? grad_weight : nullptr, nullptr};
  void* light_gradient = conv.dynamic ? nullptr : grad_weight;
  conv.type == Scalar::f64 ? backward_as<double>(conv, gradients, light_gradient)
                           : backward_as<float>(conv, gradients, light_gradient);
}

Tensor conv_step(const Tensor& x_any, const Tensor& weight_any, Tensor ring, Tensor ancestors, Tensor position,
                 bool softmax) {
  const Tensor x = as_contiguous(x_any), weight = as_contiguous(weight_any);
  const StepSizes sizes = check_step(x, weight, ring, ancestors, position);
  Step step{};
  step.N = sizes.N, step.M = sizes.M, step.C = sizes.C, step.H = sizes.H, step.K = sizes.K;
  step.dynamic = sizes.dynamic, step.softmax = softmax, step.type = scalar_of(x);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  step.x = x.const_data_ptr(), step.weight = weight.const_data_ptr(), step.out = out.mutable_data_ptr();
  int64_t& inputs = inputs_of(position);
  take_state(step, ring, static_cast<int32_t*>(ancestors.mutable_data_ptr()), inputs);
  run(step);
  ++inputs;
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("light_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("dynamic_conv", TORCH_BOX(&forward<&run_forward>));
  m.impl("conv_backward", TORCH_BOX(&backward<&run_backward>));
  m.impl("conv_step", TORCH_BOX(&conv_step));
}

}  // namespace lightconv
