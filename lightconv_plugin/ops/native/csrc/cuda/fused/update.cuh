// The last part of an update of a flat model, in fairseq's form: loss scale, clipping of the gradient, and Adam.
// Numbers that change from one update to the next are read from device memory, so that one captured graph serves all
// updates. The reference implementation is ops/fused/update.py, which has the same names.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

__device__ __forceinline__ bool finite(double value) { return value - value == 0.0; }

// Runs in one thread. Numbers that fairseq computes in float32 are computed in float32.
template <Case C> __device__ __forceinline__ void update_decide(const DecideArgs& args, unsigned char*) {
  if (threadIdx.x > 0) return;
  double* control = args.control;
  double* outcome = args.outcome;
  const double* settings = args.settings;
  const bool scaled = settings[SCALED] != 0.0;
  double& scale = control[LOSS_SCALE];
  const double sizes = *args.sample_size, factor = 1.0 / scale / (sizes != 0.0 ? sizes : 1.0);
  const float norm = static_cast<float>(factor) * *args.norm, clip = static_cast<float>(settings[CLIP]);
  const bool good = finite(norm);
  outcome[NORM] = norm;
  outcome[APPLIED] = good;
  outcome[FLOOR] = 0.0;
  float multiply = static_cast<float>(factor);
  if (!good) {
    control[SKIPPED] += 1.0;
    if (!scaled) return;
    const double before = scale, since = control[ITERATION] - control[LAST_RESCALE];
    control[LAST_OVERFLOW] = control[ITERATION];
    control[OVERFLOWS] += 1.0;
    if (control[OVERFLOWS] >= settings[TOLERANCE] * since) {
      scale = scale / 2.0 > settings[LEAST] ? scale / 2.0 : settings[LEAST];
      control[LAST_RESCALE] = control[ITERATION];
      control[OVERFLOWS] = 0.0;
    }
    if (scale <= settings[LOWEST]) {
      scale = before;
      outcome[FLOOR] = 1.0;
    } else {
      control[ITERATION] += 1.0;
    }
    return;
  }
  if (clip > 0.0f) {
    if (scaled) {
      if (norm > clip) multiply *= clip / norm;
    } else {
      const float coefficient = clip / (norm + 1e-6f);
      multiply *= coefficient < 1.0f ? coefficient : 1.0f;
    }
  }
  const int behind = static_cast<int>(control[SKIPPED] - args.orders[0]);  // skipped updates unknown to the host
  const double rate = args.orders[1 + behind], steps = control[STEPS] += 1.0;
  outcome[MULTIPLY] = multiply;
  outcome[STEP_SIZE] = rate * sqrt(1.0 - pow(settings[BETA2], steps)) / (1.0 - pow(settings[BETA1], steps));
  outcome[DECAY] = settings[WEIGHT_DECAY] * rate;
  if (!scaled) return;
  if (fmod(control[ITERATION] - control[LAST_OVERFLOW], settings[WINDOW]) == 0.0) {
    scale *= 2.0;
    control[LAST_RESCALE] = control[ITERATION];
  }
  control[ITERATION] += 1.0;
}

// Eight neighbouring numbers per thread. The gradient is set to zero, so that the next one can be added to it.
template <Case C> __device__ __forceinline__ void adam_step(const AdamArgs& args, unsigned char*) {
  using S = typename Scalar<C.type>::type;
  constexpr int W = 16 / static_cast<int>(sizeof(S));
  const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (first >= args.N) return;
  S* grads = static_cast<S*>(args.grad) + first;
  const double* outcome = args.outcome;
  if (outcome[APPLIED] != 0.0) {
    const float multiply = outcome[MULTIPLY], step_size = outcome[STEP_SIZE], decay = outcome[DECAY];
    const float beta1 = args.beta1, beta2 = args.beta2, eps = args.eps;
    const float rest1 = static_cast<float>(1.0 - args.beta1), rest2 = static_cast<float>(1.0 - args.beta2);
    float grad[8], param[8], mean[8], square[8];
#pragma unroll
    for (int i = 0; i < 8; i += W) {
      float part[W];
      widen(load<S, W>(grads + i), part);
#pragma unroll
      for (int w = 0; w < W; ++w) grad[i + w] = part[w] * multiply;
    }
    const auto read = [&](const float* from, float (&to)[8]) {
      float part[4];
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        widen(load<float, 4>(from + first + i), part);
#pragma unroll
        for (int w = 0; w < 4; ++w) to[i + w] = part[w];
      }
    };
    const auto write = [&](float* to, const float (&from)[8]) {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float part[4] = {from[i], from[i + 1], from[i + 2], from[i + 3]};
        store<float, 4>(to + first + i, narrow<float, 4>(part));
      }
    };
    read(args.param, param), read(args.exp_avg, mean), read(args.exp_avg_sq, square);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      mean[i] = mean[i] * beta1 + rest1 * grad[i];
      square[i] = square[i] * beta2 + rest2 * grad[i] * grad[i];
      param[i] -= decay * param[i];
      param[i] -= step_size * (mean[i] / (sqrtf(square[i]) + eps));
    }
    write(args.param, param), write(args.exp_avg, mean), write(args.exp_avg_sq, square);
    if (args.weight != nullptr) {
      S* weights = static_cast<S*>(args.weight) + first;
#pragma unroll
      for (int i = 0; i < 8; i += W) {
        float part[W];
#pragma unroll
        for (int w = 0; w < W; ++w) part[w] = param[i + w];
        store<S, W>(weights + i, narrow<S, W>(part));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i += W) store<S, W>(grads + i, zeros<S, W>());
}

}  // namespace lightconv::cuda
