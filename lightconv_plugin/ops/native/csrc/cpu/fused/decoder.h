// The blocks of a decoder at one position, for N hypotheses (section 5.1).
#pragma once

#include <optional>
#include <vector>

#include "cpu/fused/linear.h"

namespace lightconv {

// Options that all blocks of a decoder share, and the number N of hypotheses.
struct Options {
  int64_t N, conv_heads, heads;
  bool gated, dynamic, norm_first;
  double eps;
};

// The layers of a block. in and out: before and after the convolution `step`, whose kernels `kernels` predicts. query
// and attended: before and after the attention. first and second: the feed-forward network. `widest`: the largest
// number of outputs of a layer.
struct Block {
  Linear in, kernels, out, query, attended, first, second;
  LayerNorm mixer_norm, attention_norm, ffn_norm;
  Step step;
  Attention attention;
  int64_t widest;
};

// All blocks of a decoder of C channels. `widest`: the largest of the blocks' widths. The caller sets the state that the
// convolutions share: ancestors (slots, N), where each ring has a slot for each of its taps, and the number of inputs.
struct Decoder {
  Options options;
  int64_t C, widest, slots;
  std::vector<Block> blocks;
  std::vector<Tensor> rings;
  int32_t* ancestors;
  int64_t* inputs;
};

// Checks the arguments, which ops.decoder_step describes, and makes a decoder of them. They must outlive it.
Decoder decoder_of(int64_t C, const std::vector<Tensor>& weights, const std::vector<Tensor>& rings,
                   const std::vector<Tensor>& keys, const std::vector<Tensor>& values,
                   const std::optional<Tensor>& padding, const Tensor& sentence, const Options& options);

// Computes all blocks in place at the newest position: sum (N, C).
void run(Decoder& decoder, float* sum);

// Makes a linear layer from its weight, (out, in) or packed by pack_weight, and its bias, or null.
Linear layer_of(const Tensor& weight, const Tensor* bias, int64_t in, int64_t out);
LayerNorm norm_of(const Tensor& scale, const Tensor& shift, int64_t C, double eps);
// Computes a layer: x (rows, in), y (rows, out).
void compute(Linear layer, int64_t rows, const float* x, float* y, bool relu = false);

}  // namespace lightconv
