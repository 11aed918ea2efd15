// The schemas of the operators; cpu/ and cuda/ register the implementations.
#include "tensor.h"

STABLE_TORCH_LIBRARY(lightconv, m) {
  for (const char* schema : {
           "light_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed, "
           "Tensor? offsets=None, Tensor? state=None) -> Tensor",
           "dynamic_conv(Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, Tensor? seed, "
           "Tensor? offsets=None, Tensor? state=None) -> Tensor",
           "conv_backward(Tensor grad, Tensor x, Tensor weight, int padding_l, bool softmax, float dropconnect, "
           "Tensor? seed, bool need_x, bool need_weight, bool need_state, Tensor? offsets, Tensor? state) "
           "-> (Tensor, Tensor, Tensor)",
           "conv_step(Tensor x, Tensor weight, Tensor(a!) ring, Tensor(b!) ancestors, Tensor(c!) position, bool softmax) "
           "-> Tensor",
           "cpu_vector_bits(int bits) -> int",
           "cuda_configure(str sources, str nvrtc, str cache) -> ()",
           "cuda_gather(bool begin) -> int",

           // the fused operators, which are not from the paper: cpu/fused, cuda/fused
           "glu_mask(Tensor x, Tensor? padding_mask) -> Tensor",
           "glu_mask_backward(Tensor grad, Tensor x, Tensor? padding_mask) -> Tensor",
           "dropout(Tensor x, float p, Tensor seed) -> Tensor",
           "smoothed_nll(Tensor logits, Tensor target, int ignore) -> (Tensor, Tensor)",
           "smoothed_nll_backward(Tensor grad, Tensor logits, Tensor target, Tensor log_sums, float nll_share, "
           "float all_share, int ignore) -> Tensor",
           "residual_norm(Tensor x, Tensor y, Tensor weight, Tensor bias, float p, Tensor? seed, float eps) "
           "-> (Tensor, Tensor, Tensor)",
           "residual_norm_backward(Tensor grad, Tensor z, Tensor weight, Tensor stats, float p, Tensor? seed) "
           "-> (Tensor, Tensor, Tensor)",
           "update_decide(Tensor norm, Tensor sample_size, Tensor orders, Tensor settings, Tensor(a!) control, "
           "Tensor(b!) outcome) -> ()",
           "adam_step(Tensor(a!) param, Tensor(b!) grad, Tensor(c!) exp_avg, Tensor(d!) exp_avg_sq, Tensor(e!)? weight, "
           "Tensor outcome, float beta1, float beta2, float eps) -> ()",
           "attend(Tensor query, Tensor keys, Tensor values, Tensor? padding, Tensor sentence, int heads) -> Tensor",
           "step_candidates(Tensor logits, Tensor scores, Tensor limits, int beams, int count, float temperature, int pad, "
           "int eos, int unk, float unk_penalty) -> (Tensor, Tensor, Tensor)",
           // the tensors from limits to ancestors as ops.Beams describes them
           "search_step(Tensor values, Tensor candidates, Tensor origins, Tensor(a!) limits, Tensor(b!) clock, "
           "Tensor penalties, Tensor(c!) newest, Tensor(d!) scores, Tensor(e!) order, Tensor(f!) words, "
           "Tensor(g!) parents, Tensor(h!) sums, Tensor(i!) steps, Tensor(j!) rows, Tensor(k!) totals, Tensor(l!) ranks, "
           "Tensor(m!) open, Tensor(n!) ancestors, int eos, bool stepwise) -> ()",
           "few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
           "pack_weight(Tensor weight, str precision) -> Tensor",
           "packed_linear(Tensor x, Tensor packed, Tensor? bias, int out, bool relu) -> Tensor",
           "bf16_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
           "bf16_linear_backward(Tensor grad, Tensor x, Tensor weight, bool need_x, bool need_weight, bool need_bias) "
           "-> (Tensor, Tensor, Tensor)",
           "cpu_bf16_units(int most) -> int",
           "cpu_int8_units(int most) -> int",
           // the weights of each block as ops.BlockWeights names and describes them, one block after the other
           "decoder_step(Tensor x, Tensor[] weights, Tensor(a!)[] rings, Tensor(b!) ancestors, Tensor(c!) position, "
           "Tensor[] keys, Tensor[] values, Tensor? padding, Tensor sentence, int conv_heads, int heads, bool gated, "
           "bool dynamic, bool norm_first, float eps) -> Tensor",
           // beams: the tensors of ops.Beams
           "beam_search(Tensor(a!)[] beams, int bos, Tensor embeddings, float scale, Tensor? positions, "
           "Tensor? norm_weight, Tensor? norm_bias, Tensor out_weight, Tensor? out_bias, Tensor[] weights, "
           "Tensor(b!)[] rings, Tensor[] keys, Tensor[] values, Tensor? padding, int conv_heads, int heads, bool gated, "
           "bool dynamic, bool norm_first, float eps, float temperature, int pad, int eos, int unk, float unk_penalty, "
           "bool stepwise) -> ()",
       })
    m.def(schema);
}
