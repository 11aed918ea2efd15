// Linear maps on all threads.
#pragma once

#include "cpu/run.h"

namespace lightconv {

const float* float32(const Tensor& x);  // where its numbers begin, checked
const uint16_t* packed_weight(const Tensor& packed, int64_t out, int64_t in);  // of bf16_pack, checked
void run(const Linear& linear);

}  // namespace lightconv
