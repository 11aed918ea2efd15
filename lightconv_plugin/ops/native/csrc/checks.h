// Checks of the operators' arguments, with the same error messages on CPUs and GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "tensor.h"

namespace lightconv {

// Rounds a probability of dropping p < 1 to float32, in which it stays below 1.
inline float probability_of(double p) { return std::min(static_cast<float>(p), 0x1.fffffep-1f); }

inline void check_dropping(const char* operator_name, double p, const std::optional<Tensor>& seed) {
  STD_TORCH_CHECK(p >= 0.0 && p < 1.0, operator_name, " is outside [0, 1)");
  STD_TORCH_CHECK(p == 0.0 || (seed.has_value() && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long),
                  operator_name, " > 0 needs a seed, a tensor of one int64");
}

// Checks a decoder's past inputs, ring (K, M, C). Returns M.
inline int64_t check_ring(const Tensor& ring, int64_t N, int64_t C, int64_t K, ScalarType type) {
  STD_TORCH_CHECK(ring.dim() == 3 && ring.size(0) == K && ring.size(1) >= N && ring.size(1) <= INT32_MAX &&
                      ring.size(2) == C && ring.scalar_type() == type && ring.is_contiguous(),
                  "conv_step: expected ring (K, M, C), 2^31 > M >= N, contiguous, of the type of x and weight");
  return ring.size(1);
}

// Checks the state that rings of together `slots` slots share: the rows of N hypotheses in them, and the position.
inline void check_history(const Tensor& ancestors, const Tensor& position, int64_t slots, int64_t N) {
  STD_TORCH_CHECK(ancestors.dim() == 2 && ancestors.size(0) == slots && ancestors.size(1) == N &&
                      ancestors.scalar_type() == ScalarType::Int && ancestors.is_contiguous(),
                  "conv_step: expected ancestors (K, N), int32, contiguous");
  STD_TORCH_CHECK(position.numel() == 1 && position.scalar_type() == ScalarType::Long,
                  "conv_step: expected position (1,), int64");
}

// Sizes of a decoding step: x (1, N, C), weight (H, K) or, if dynamic, (1, N, H, K), and ring (K, M, C).
struct StepSizes {
  int64_t N, M, C, H, K;
  bool dynamic;
};

inline StepSizes check_step(const Tensor& x, const Tensor& weight, const Tensor& ring, const Tensor& ancestors,
                            const Tensor& position) {
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && (weight.dim() == 2 || weight.dim() == 4),
                  "conv_step: expected x (1, N, C) and weight (H, K) or (1, N, H, K)");
  const bool dynamic = weight.dim() == 4;
  StepSizes sizes{x.size(1), 0, x.size(2), weight.size(dynamic ? 2 : 0), weight.size(dynamic ? 3 : 1), dynamic};
  STD_TORCH_CHECK(!dynamic || (weight.size(0) == 1 && weight.size(1) == sizes.N),
                  "conv_step: expected weight (1, N, H, K) with the N of x (1, N, C)");
  STD_TORCH_CHECK(sizes.K > 0 && sizes.H > 0 && sizes.C % sizes.H == 0,
                  "conv_step: the heads do not divide the channels");
  STD_TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "conv_step: x, weight and ring differ in type");
  sizes.M = check_ring(ring, sizes.N, sizes.C, sizes.K, x.scalar_type());
  check_history(ancestors, position, sizes.K, sizes.N);
  return sizes;
}

// Checks logits (N, V) and their targets (N,).
inline void check_loss(const Tensor& logits, const Tensor& target) {
  STD_TORCH_CHECK(logits.dim() == 2 && target.dim() == 1 && target.size(0) == logits.size(0) &&
                      target.scalar_type() == ScalarType::Long,
                  "smoothed_nll: expected logits (N, V) and target (N,), int64");
}

// Checks logits (N, V) of N / beams sentences, scores (N,), limits (3,) and the special tokens.
inline void check_candidates(const Tensor& logits, const Tensor& scores, const Tensor& limits, int64_t beams,
                             double temperature, std::initializer_list<int64_t> special) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.size(1) <= INT32_MAX && beams > 0 &&
                      logits.size(0) % beams == 0,
                  "step_candidates: expected logits (sentences * beams, V), V >= 1; got beams = ", beams);
  STD_TORCH_CHECK(temperature > 0, "step_candidates: expected a temperature above 0; got ", temperature);
  for (int64_t token : special)
    STD_TORCH_CHECK(token >= 0 && token < logits.size(1), "step_candidates: a special token is outside the vocabulary");
  STD_TORCH_CHECK(scores.numel() == logits.size(0) && scores.scalar_type() == ScalarType::Float,
                  "step_candidates: expected scores (sentences * beams,), float32");
  STD_TORCH_CHECK(limits.numel() == 3 && limits.scalar_type() == ScalarType::Long && limits.is_contiguous(),
                  "step_candidates: expected limits (3,), int64, contiguous");
}

// Sizes of search_step: N = sentences * beams hypotheses, at most `longest` steps, rings of `slots` slots.
struct SearchSizes {
  int64_t N, sentences, beams, longest, slots;
};

// Checks values, candidates and origins (sentences, 2 * beams), and the tensors of ops.Beams.
inline SearchSizes check_search(const Tensor& values, const Tensor& candidates, const Tensor& origins, const Tensor& limits,
                                const Tensor& clock, const Tensor& penalties, const Tensor& newest, const Tensor& scores,
                                const Tensor& order, const Tensor& words, const Tensor& parents, const Tensor& sums,
                                const Tensor& steps, const Tensor& rows, const Tensor& totals, const Tensor& ranks,
                                const Tensor& open, const Tensor& ancestors) {
  SearchSizes sizes{newest.numel(), clock.numel(), 1, penalties.numel(), 0};
  if (sizes.sentences > 0) sizes.beams = sizes.N / sizes.sentences;
  STD_TORCH_CHECK(sizes.beams >= 1 && sizes.N == sizes.sentences * sizes.beams,
                  "search_step: expected newest (sentences * beam,) and clock (sentences,)");
  STD_TORCH_CHECK(ancestors.dim() == 2 && ancestors.size(1) == sizes.N && ancestors.scalar_type() == ScalarType::Int &&
                      ancestors.is_contiguous() && ancestors.size(0) <= INT32_MAX,
                  "search_step: expected ancestors (slots, sentences * beam), int32, contiguous");
  sizes.slots = ancestors.size(0);
  const auto expect = [](const Tensor& x, ScalarType type, int64_t size) {
    STD_TORCH_CHECK(x.numel() == size && x.scalar_type() == type && x.is_contiguous(),
                    "search_step: expected tensors as ops.Beams describes them");
  };
  const int64_t N = sizes.N, all = sizes.longest * N;
  expect(values, ScalarType::Float, 2 * N), expect(candidates, ScalarType::Long, 2 * N);
  expect(origins, ScalarType::Long, 2 * N), expect(limits, ScalarType::Long, 3);
  expect(clock, ScalarType::Long, sizes.sentences), expect(penalties, ScalarType::Double, sizes.longest);
  expect(newest, ScalarType::Long, N), expect(scores, ScalarType::Float, N), expect(order, ScalarType::Long, N);
  expect(words, ScalarType::Long, all), expect(parents, ScalarType::Long, all), expect(sums, ScalarType::Float, all);
  expect(steps, ScalarType::Long, N), expect(rows, ScalarType::Long, N), expect(totals, ScalarType::Float, N);
  expect(ranks, ScalarType::Double, N), expect(open, ScalarType::Bool, sizes.sentences);
  return sizes;
}

// Checks what N queries of C channels attend to: keys and values (sentences, S, C), padding (sentences, S) or none, and
// sentence (N,), the sentence of each query.
inline void check_attention(const Tensor& keys, const Tensor& values, const std::optional<Tensor>& padding,
                            const Tensor& sentence, int64_t N, int64_t C, int64_t heads, ScalarType type) {
  STD_TORCH_CHECK(heads > 0 && C % heads == 0, "attend: the heads do not divide the channels");
  for (const Tensor* kept : {&keys, &values})
    STD_TORCH_CHECK(kept->dim() == 3 && kept->size(0) == keys.size(0) && kept->size(1) == keys.size(1) &&
                        kept->size(2) == C && kept->scalar_type() == type && kept->is_contiguous(),
                    "attend: expected keys and values (sentences, S, C), contiguous, of the query's C and type");
  STD_TORCH_CHECK(!padding.has_value() ||
                      (padding->scalar_type() == ScalarType::Bool && padding->dim() == 2 && padding->is_contiguous() &&
                       padding->size(0) == keys.size(0) && padding->size(1) == keys.size(1)),
                  "attend: expected padding (sentences, S), bool, contiguous");
  STD_TORCH_CHECK(sentence.scalar_type() == ScalarType::Long && sentence.dim() == 1 && sentence.size(0) == N &&
                      sentence.is_contiguous(),
                  "attend: expected sentence (N,), int64, contiguous");
}

}  // namespace lightconv
