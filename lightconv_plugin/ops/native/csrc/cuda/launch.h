// The operators on raw device pointers: which kernel, cut how, with which arguments. Nothing of torch is in here.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda/case.h"

namespace lightconv::cuda {

// Where work goes, and memory that lives until the call returns (on one stream that is enough).
struct Place {
  int device;
  void* stream;
  std::function<void*(size_t bytes)> scratch;
};

// x (T, B, C = H * R), logits (H, K) or, dynamic, (T, B, H, K), all contiguous.
struct Conv {
  long long T, B, H, R, K, padding_l;
  Type type;
  bool dynamic, softmax;
  double dropconnect;     // probability of dropping; 0: none
  const long long* seed;  // on the device; not read without DropConnect
  const void* x;
  const void* logits;
};

// All of these throw std::runtime_error: no driver, no NVRTC, or what one of them says.
void forward(const Place& place, const Conv& conv, void* out);
void backward(const Place& place, const Conv& conv, const void* grad, void* grad_x, void* grad_logits);  // null: not wanted

// x (T, B, 2C), mask (B, T) or null, out (T, B, C); backward: grad (T, B, C), out (T, B, 2C).
void glu(const Place& place, Type type, long long T, long long B, long long C, const void* x, const bool* mask, void* out);
void glu_backward(const Place& place, Type type, long long T, long long B, long long C, const void* grad, const void* x,
                  const bool* mask, void* out);

// One position of N hypotheses, see step.cuh; ring (K, M, C), ancestors (K, A).
struct Step {
  long long N, M, A, H, R, K;
  Type type;
  bool dynamic, softmax;
  const void* x;
  const void* logits;
  void* ring;
  int* ancestors;
  long long* position;
  void* out;
};

void step(const Place& place, const Step& step);

// Rows of logits (N, V), `stride` apart, and their targets (N,); see loss.cuh.
struct Rows {
  long long N, V, stride, ignore;
  Type type;
  const void* logits;
  const long long* target;
};

// log_sums (N,); sums: of -log p(target), and of -log p over all types. A target outside of 0..V-1 gives NaN.
void loss(const Place& place, const Rows& rows, double* log_sums, double* sums);
// out (N, V): the gradient of grad * (nll_share * sums[0] + all_share * sums[1]); grad: float32, or float64 as the logits.
void loss_backward(const Place& place, const Rows& rows, const void* grad, const double* log_sums, double nll_share,
                   double all_share, void* out);

}  // namespace lightconv::cuda
