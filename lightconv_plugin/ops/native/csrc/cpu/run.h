// The number types of the CPU kernels, and calls of kernels on all threads, with scratch memory kept from call to call.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/team.h"
#include "tensor.h"

namespace lightconv {

inline Scalar scalar_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Scalar::f32;
    case ScalarType::Double: return Scalar::f64;
    case ScalarType::BFloat16: return Scalar::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float64 or bfloat16");
  }
}

inline constexpr int64_t kWorth = 131072;  // multiply-adds that are worth waking a thread: about 10 microseconds

// Calls body(scratch, begin, end) on threads, for ranges of [0, count). Each thread has `numbers` numbers of 8 bytes as
// scratch memory.
template <class Body>
void on_threads(int64_t count, int64_t grain, int64_t numbers, const Body& body) {
  in_ranges(count, grain, [&](int64_t begin, int64_t end) {
    thread_local std::vector<double> scratch;
    scratch.resize(numbers);
    body(scratch.data(), begin, end);
  });
}

inline void run(const Step& step) {
  on_threads(step.N, kWorth / (step.inputs * step.C + 1), step_scratch(step),
             [&](void* scratch, int64_t begin, int64_t end) { kernels().step(step, scratch, begin, end); });
}

// Returns the number of inputs so far, which the caller counts up after a step.
inline int64_t& inputs_of(const Tensor& position) {
  int64_t& inputs = *static_cast<int64_t*>(position.mutable_data_ptr());
  STD_TORCH_CHECK(inputs >= 0 && inputs < INT64_MAX, "conv_step: expected a position >= 0; got ", inputs);
  return inputs;
}

// Sets the state of a step after `inputs` earlier inputs, and the slot of the newest one. ancestors: (K, N).
inline void take_state(Step& step, const Tensor& ring, int32_t* ancestors, int64_t inputs) {
  step.ring = ring.mutable_data_ptr();
  step.ancestors = ancestors;
  step.slot = inputs % step.K;
  step.inputs = std::min(inputs + 1, step.K);
  for (int64_t k = 1; k < step.inputs; ++k) {  // the slots that are read, without the newest, which is written
    const int32_t* rows = step.ancestors + (step.slot + step.K - k) % step.K * step.N;
    bool inside = true;
    for (int64_t n = 0; n < step.N; ++n) inside &= rows[n] >= 0 && rows[n] < step.M;
    STD_TORCH_CHECK(inside, "conv_step: expected ancestors in 0..M-1, rows of ring (K, M, C)");
  }
}

}  // namespace lightconv
