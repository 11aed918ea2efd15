// Linear layers on all threads.
#pragma once

#include "cpu/run.h"

namespace lightconv {

const float* float32(const Tensor& x);  // checks x and returns its data
// Checks that `packed` is a weight (out, in) that pack_weight has packed, and returns it.
PackedWeight packed_weight(const Tensor& packed, int64_t out, int64_t in);
// Computes the linear layer on all threads; its x and y must be set.
void run(const Linear& linear);

}  // namespace lightconv
