// The operators as torch sees them; what runs them is registered by cpu/ and cuda/.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(lightconv, m) {
  for (const char* schema : {
           "light_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed) -> Tensor",
           "dynamic_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed) -> Tensor",
           "light_conv_backward(Tensor grad, Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, "
           "Tensor? seed, bool need_x, bool need_weight) -> (Tensor, Tensor)",
           "dynamic_conv_backward(Tensor grad, Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, "
           "Tensor? seed, bool need_x, bool need_weight) -> (Tensor, Tensor)",
           "conv_step(Tensor x, Tensor weight, Tensor(a!) ring, Tensor(b!) ancestors, Tensor(c!) position, bool softmax) "
           "-> Tensor",
           "reorder_ancestors(Tensor ancestors, Tensor order) -> Tensor",
           "dropout(Tensor x, float p, Tensor seed) -> Tensor",
           "smoothed_nll(Tensor logits, Tensor target, int ignore) -> (Tensor, Tensor)",
           "smoothed_nll_backward(Tensor grad, Tensor logits, Tensor target, Tensor log_sums, float nll_share, "
           "float all_share, int ignore) -> Tensor",
           "cpu_vector_bits(int bits) -> int",
           "cpu_fma(int iterations) -> float",
       })
    m.def(schema);
}
