// The best continuations of hypotheses from their logits (N, V), without storing log-probabilities. step_candidates
// finds the C.K best of each row, one block per row; step_candidates_finish finds the C.K best of each sentence among
// these, one warp per sentence. Of equal candidates the first is better.
#pragma once

#include "cuda/fused/loss.cuh"

namespace lightconv::cuda {

constexpr long long NOWHERE = 0x7fffffffffffffff;

struct Candidate {
  float value;
  long long place;  // the word in a row; beam * V + word in a sentence

  __device__ __forceinline__ bool before(const Candidate& other) const {
    return value > other.value || (value == other.value && place < other.place);
  }
};

__device__ __forceinline__ Candidate no_candidate() { return {-__int_as_float(0x7f800000), NOWHERE}; }

__device__ __forceinline__ Candidate lanes_first(Candidate best) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Candidate other{__shfl_xor_sync(0xffffffffu, best.value, step), __shfl_xor_sync(0xffffffffu, best.place, step)};
    if (other.before(best)) best = other;
  }
  return best;
}

template <Case C> __device__ __forceinline__ void step_candidates(const CandidateArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  constexpr int W = vector_of(C), K = C.K, warps = CANDIDATE_THREADS / 32;
  constexpr int groups = power_of_two_from(ceil_div(K + 3, warps));  // of lanes in a warp
  const long long n = blockIdx.x, step = args.limits[0];
  const bool may_end = step >= args.limits[1], must_end = step >= args.limits[2];
  const S* row = static_cast<const S*>(args.logits) + n * args.V;
  const float temperature = static_cast<float>(args.temperature), score = args.scores[n];
  float most = -__int_as_float(0x7f800000), total = 0;
  const auto each = [&](const auto& act) {
#pragma unroll 4
    for (long long v = threadIdx.x * W; v < args.V; v += CANDIDATE_THREADS * W) {
      float x[W];
      const Vec<S, W> loaded = load_fixed<S, W>(row + v);
#pragma unroll
      for (int w = 0; w < W; ++w) x[w] = 0;
      widen(loaded, x);
      if (temperature != 1.0f) {
#pragma unroll
        for (int w = 0; w < W; ++w) x[w] /= temperature;
      }
      act(v, x);
    }
  };
  each([&](long long, const float (&x)[W]) {
    float top = most;
#pragma unroll
    for (int w = 0; w < W; ++w) top = x[w] > top ? x[w] : top;
    total *= exp_below(most, top);
#pragma unroll
    for (int w = 0; w < W; ++w) total += exp_below(x[w], top);
    most = top;
  });
  float* sums = reinterpret_cast<float*>(shared);  // (warps, 3)
  const float own_top = lanes_max<32>(most), own_total = lanes_sum<32>(total * exp_below(most, own_top));
  // Each of at least K + 3 groups has a maximum, and the least of these maxima is a lower bound for candidates: K + 3
  // logits reach it, and at most three words (pad, eos, unk) are banned or lowered.
  float least = lanes_max<32 / groups>(most);
#pragma unroll
  for (int step = 32 / groups; step < 32; step *= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, step));
  if (threadIdx.x % 32 == 0) {
    float* own = sums + threadIdx.x / 32 * 3;
    own[0] = own_top, own[1] = own_total, own[2] = least;
  }
  __syncthreads();
  most = sums[0], total = 0;
  for (int i = 1; i < warps; ++i) most = sums[i * 3] > most ? sums[i * 3] : most;
  for (int i = 0; i < warps; ++i) total += sums[i * 3 + 1] * exp_below(sums[i * 3], most), least = fminf(least, sums[i * 3 + 2]);
  const float log_total = log(total), floor = must_end ? -__int_as_float(0x7f800000) : least - most - log_total + score;
  Candidate list[K];
#pragma unroll
  for (int k = 0; k < K; ++k) list[k] = no_candidate();
  each([&](long long v, const float (&x)[W]) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const long long word = v + w;
      float value = x[w] - most - log_total;
      if (word == args.unk) value -= static_cast<float>(args.unk_penalty);
      const bool banned = word == args.pad || (word == args.eos ? !may_end : must_end);
      if (banned || value != value) value = -__int_as_float(0x7f800000);
      const Candidate next{value + score, word};
      if (next.value < floor || !next.before(list[K - 1])) continue;
      list[K - 1] = next;
#pragma unroll
      for (int k = K - 1; k > 0; --k)
        if (list[k].before(list[k - 1])) {
          const Candidate later = list[k - 1];
          list[k - 1] = list[k], list[k] = later;
        }
    }
  });
  Candidate* firsts = reinterpret_cast<Candidate*>(shared + 12 * warps);
  for (int k = 0; k < K; ++k) {
    const Candidate own = lanes_first(list[0]);
    __syncthreads();  // firsts of the previous k have been read
    if (threadIdx.x % 32 == 0) firsts[threadIdx.x / 32] = own;
    __syncthreads();
    Candidate best = firsts[0];
    for (int i = 1; i < warps; ++i)
      if (firsts[i].before(best)) best = firsts[i];
    if (list[0].place == best.place && best.place != NOWHERE) {
#pragma unroll
      for (int i = 0; i + 1 < K; ++i) list[i] = list[i + 1];
      list[K - 1] = no_candidate();
    }
    if (threadIdx.x == 0) args.kept[n * K + k] = best.value, args.kept_words[n * K + k] = best.place;
  }
}

// Merges the sorted lists of a sentence's hypotheses: a lane holds the next candidate of its hypothesis.
template <Case C> __device__ __forceinline__ void step_candidates_finish(const CandidateArgs& args, unsigned char*) {
  constexpr int K = C.K;
  const long long sentence = blockIdx.x, lane = threadIdx.x, row = sentence * args.beams + lane;
  int next = lane < args.beams ? 0 : K;
  for (int k = 0; k < K; ++k) {
    Candidate own = no_candidate();
    if (next < K) own = {args.kept[row * K + next], lane * args.V + args.kept_words[row * K + next]};
    const Candidate best = lanes_first(own);
    if (next < K && own.place == best.place) ++next;
    if (lane == 0) {
      const long long at = sentence * K + k;
      args.best[at] = best.value, args.words[at] = best.place % args.V, args.parents[at] = best.place / args.V;
    }
  }
}

}  // namespace lightconv::cuda
