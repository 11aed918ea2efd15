// The operators beside the paper's on raw device pointers, as cuda/launch.h has them.
#pragma once

#include "cuda/auxiliary/args.h"
#include "cuda/launch.h"

namespace lightconv::cuda {

// With a gradient the gradient of x, else the gate.
void glu(const Place& place, Type type, const GluArgs& args);

// log_sums and sums: of -log p(target), and of -log p over all types. A target outside of 0..V-1 gives NaN.
void loss(const Place& place, Type type, LossArgs args);
// out: the gradient of grad * (nll_share * sums[0] + all_share * sums[1]); grad: float32, or float64 as the logits.
void loss_backward(const Place& place, Type type, const LossArgs& args);

// Rows of C numbers, 1 to NORM_WIDEST of them.
void norm(const Place& place, Type type, const NormArgs& args);
void norm_backward(const Place& place, Type type, NormGradArgs args);

// R: channels of a head.
void attend(const Place& place, Type type, long long R, const AttendArgs& args);

// The `count` best, 1 to MOST_CANDIDATES, of each sentence of up to MOST_BEAMS rows; needs no kept.
void candidates(const Place& place, Type type, int count, CandidateArgs args);

void sums(const Place& place, Type type, SumsArgs args);

// What an update's norm decides; then Adam on N numbers, a multiple of 8, all at multiples of 16 bytes.
void decide(const Place& place, const DecideArgs& args);
void adam(const Place& place, Type type, const AdamArgs& args);

}  // namespace lightconv::cuda
