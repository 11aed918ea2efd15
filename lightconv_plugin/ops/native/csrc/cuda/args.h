// The arguments of the kernels, one struct each, passed by value: the same bytes for the launcher and the device.
#pragma once

namespace lightconv::cuda {

struct DropConnect {
  const long long* seed;   // device memory, so that a replayed graph draws anew
  unsigned int threshold;  // round(p * 2^32): a word below it drops its weight
  double scale;            // 1 / (1 - p)
};

// Position t of sentence b is row t * step + b * sentence of x, of what has its shape, and of DynamicConv's logits:
// step, sentence = B, 1 for (T, B, C), and 1, T for (B, T, C). What n stands for, (t * B + b) * H + h, is not of memory:
// DropConnect draws by it, the same in every layout.

// A convolution and its gradients. Of x and logits: out (T, B, C); for grad_x alone x is the gradient. Of the gradient
// too: the logits' gradient, dynamic, or LightConv's sums over the positions of a block, partial (splits, H, K).
struct ConvArgs {
  const void* x;
  const void* logits;
  const void* grad;
  void* out;
  void* grad_logits;
  float* partial;
  const float* row_sums;  // for several bands, see row_sums in general.cuh
  DropConnect dropconnect;
  int T, B, padding_l, splits;
  int step, sentence;
};

// finish: LightConv's gradient (H, K) from partial (splits, H, K); without softmax at least in float32
struct FinishArgs {
  const void* partial;
  const void* logits;
  void* grad_logits;
  int splits;
};

// the general kernels: weight (rows, K) are the normalised weights, rows = H or T * B * H; products likewise T * B * H
struct GeneralArgs {
  const void* grad;
  const void* x;
  const void* logits;
  void* weight;
  void* products;
  void* out;
  DropConnect dropconnect;
  long long T, B, H, R, K, padding_l, splits;
  long long step, sentence;
};

struct StepArgs {
  const void* x;       // (N, C)
  const void* logits;  // (H, K) or (N, H, K)
  void* ring;          // (K, M, C)
  int* ancestors;      // (K, N)
  long long* position;
  void* out;           // (N, C)
  int N, M;
};

}  // namespace lightconv::cuda
