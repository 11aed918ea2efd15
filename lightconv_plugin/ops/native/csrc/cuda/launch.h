// The operators on raw device pointers: which kernel, cut how, with which arguments. Nothing of torch is in here.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda/args.h"
#include "cuda/case.h"

namespace lightconv::cuda {

// Where work goes, and memory that lives until the call returns (on one stream that is enough).
struct Place {
  int device;
  void* stream;
  std::function<void*(size_t bytes)> scratch;
};

// x (T, B, C = H * R), logits (H, K) or, dynamic, (T, B, H, K), with their rows in one order; see args.h.
struct Conv {
  long long T, B, H, R, K, padding_l, step, sentence;
  Type type;
  bool dynamic, softmax;
  double dropconnect;     // probability of dropping; 0: none
  const long long* seed;  // on the device; not read without DropConnect
  const void* x;
  const void* logits;
};

// The dropping of numbers with probability p, in float32 as CPUs' kernels have it; seed: on the device.
DropConnect dropping(double p, const long long* seed);

// All of these throw std::runtime_error: no driver, no NVRTC, or what one of them says.
void forward(const Place& place, const Conv& conv, void* out);
void backward(const Place& place, const Conv& conv, const void* grad, void* grad_x, void* grad_logits);  // null: not wanted

// One position of N hypotheses, see step.cuh; of the case type, K, R, H, dynamic and softmax are given.
void step(const Place& place, Case c, const StepArgs& args);

}  // namespace lightconv::cuda
