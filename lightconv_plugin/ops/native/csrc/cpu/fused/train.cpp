// Dropout and label-smoothed cross entropy on a CPU.
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cpu/run.h"

namespace lightconv {
namespace {

constexpr int64_t kGrain = 512;  // groups of 64 numbers that are worth waking a thread

// Dropout of x. The same operator with the same seed turns the gradient of the result into that of x.
Tensor dropout(const Tensor& x_any, double p, const Tensor& seed) {
  const Tensor x = as_contiguous(x_any);
  check_dropping("dropout: p", p, seed);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  const uint64_t number = p > 0.0 ? *static_cast<const uint64_t*>(seed.const_data_ptr()) : 0;
  const Dropout task{scalar_of(x), x.const_data_ptr(), out.mutable_data_ptr(), x.numel(), probability_of(p), number};
  torch::stable::parallel_for(0, (task.count + 63) / 64, kGrain,
                              [&](int64_t begin, int64_t end) { kernels().dropout(task, begin, end); });
  return out;
}

// Returns the targets, with -1 in place of `ignore`.
std::vector<int64_t> targets(const Tensor& logits, const Tensor& target, int64_t ignore) {
  const auto* from = static_cast<const int64_t*>(target.const_data_ptr());
  std::vector<int64_t> chosen(from, from + logits.size(0));
  for (int64_t& word : chosen) {
    STD_TORCH_CHECK(word == ignore || (word >= 0 && word < logits.size(1)), "smoothed_nll: a target is outside 0..V-1");
    if (word == ignore) word = -1;
  }
  return chosen;
}

int64_t grain(int64_t V) { return 1 + 65536 / (V + 1); }  // rows that are worth waking a thread

// Returns, without storing log-probabilities, the sums over rows of -log p(target) and of -log p over the vocabulary,
// (2,), and the logarithm of each row's sum of exponentials, (N,); in float64.
std::tuple<Tensor, Tensor> smoothed_nll(const Tensor& logits_any, const Tensor& target_any, int64_t ignore) {
  const Tensor logits = as_contiguous(logits_any), target = as_contiguous(target_any);
  check_loss(logits, target);
  const int64_t N = logits.size(0), V = logits.size(1);
  const std::vector<int64_t> words = targets(logits, target, ignore);
  const LossTask task{V, scalar_of(logits), logits.const_data_ptr(), words.data()};
  Tensor sums = torch::stable::new_empty(logits, {2}, ScalarType::Double);
  Tensor log_sums = torch::stable::new_empty(logits, {N}, ScalarType::Double);
  std::vector<double> rows(4 * N);
  torch::stable::parallel_for(0, N, grain(V),
                              [&](int64_t begin, int64_t end) { kernels().loss_rows(task, rows.data(), begin, end); });
  auto* log_sum = static_cast<double*>(log_sums.mutable_data_ptr());
  double nll = 0, all = 0;
  for (int64_t n = 0; n < N; ++n) {
    const double* row = rows.data() + 4 * n;
    const double log_exps = std::log(row[1]);
    log_sum[n] = row[0] + log_exps;
    if (words[n] < 0) continue;
    nll += log_sum[n] - row[3];
    all += static_cast<double>(V) * log_exps - row[2];
  }
  auto* out = static_cast<double*>(sums.mutable_data_ptr());
  out[0] = nll, out[1] = all;
  return {sums, log_sums};
}

// Returns the gradient of grad * (nll_share * sums[0] + all_share * sums[1]), where sums (2,) is from smoothed_nll.
Tensor smoothed_nll_backward(const Tensor& grad, const Tensor& logits_any, const Tensor& target_any,
                             const Tensor& log_sums_any, double nll_share, double all_share, int64_t ignore) {
  const Tensor logits = as_contiguous(logits_any), target = as_contiguous(target_any);
  const Tensor log_sums = as_contiguous(log_sums_any);
  check_loss(logits, target);
  const int64_t N = logits.size(0), V = logits.size(1);
  const std::vector<int64_t> words = targets(logits, target, ignore);
  Tensor gradient = torch::stable::new_empty(logits, logits.sizes());
  const LossTask task{V, scalar_of(logits), logits.const_data_ptr(), words.data()};
  const double weight = grad.scalar_type() == ScalarType::Double ? *static_cast<const double*>(grad.const_data_ptr())
                                                                  : *static_cast<const float*>(grad.const_data_ptr());
  LossGradient to{static_cast<const double*>(log_sums.const_data_ptr()), 0, weight * all_share, weight * nll_share,
                  gradient.mutable_data_ptr()};
  to.scale = to.extra + to.share * static_cast<double>(V);
  torch::stable::parallel_for(0, N, grain(V),
                              [&](int64_t begin, int64_t end) { kernels().loss_gradient(task, to, begin, end); });
  return gradient;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
  m.impl("smoothed_nll", TORCH_BOX(&smoothed_nll));
  m.impl("smoothed_nll_backward", TORCH_BOX(&smoothed_nll_backward));
}

}  // namespace lightconv
