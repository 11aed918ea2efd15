// Linear layers on all threads.
#pragma once

#include "cpu/run.h"

namespace lightconv {

const float* float32(const Tensor& x);  // where its numbers begin, checked
// A tensor of pack_weight as the weight (out, in), checked.
PackedWeight packed_weight(const Tensor& packed, int64_t out, int64_t in);
// What is computed: x weight^T + bias of `linear`, whose address of y is set.
void run(const Linear& linear);

}  // namespace lightconv
