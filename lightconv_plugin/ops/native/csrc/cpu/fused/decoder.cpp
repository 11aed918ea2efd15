// One position of a decoder on a CPU: attention to the source, and all blocks in one operator.
#include "cpu/fused/decoder.h"

#include <algorithm>

#include "checks.h"

namespace lightconv {
namespace {

// Describes the attention of N queries of C channels to the sentences of a state. The caller sets type, query and out.
Attention attention_to(const Tensor& keys, const Tensor& values, const std::optional<Tensor>& padding,
                       const Tensor& sentence, int64_t N, int64_t C, int64_t heads, ScalarType type) {
  check_attention(keys, values, padding, sentence, N, C, heads, type);
  Attention a{};
  a.N = N, a.C = C, a.H = heads, a.S = keys.size(1);
  const int64_t sentences = keys.size(0);
  a.sentence = static_cast<const int64_t*>(sentence.const_data_ptr());
  for (int64_t n = 0; n < N; ++n)
    STD_TORCH_CHECK(a.sentence[n] >= 0 && a.sentence[n] < sentences,
                    "attend: the sentence of a query is not one of the keys' sentences");
  a.keys = keys.const_data_ptr(), a.values = values.const_data_ptr();
  a.padding = padding.has_value() ? static_cast<const bool*>(padding->const_data_ptr()) : nullptr;
  return a;
}

void run(const Attention& a) {
  on_threads(a.N, kWorth / (2 * a.S * a.C + 1), attend_scratch(a),
             [&](void* scratch, int64_t begin, int64_t end) { kernels().attend(a, scratch, begin, end); });
}

Tensor attend(const Tensor& query_any, const Tensor& keys, const Tensor& values, std::optional<Tensor> padding,
              const Tensor& sentence, int64_t heads) {
  const Tensor query = as_contiguous(query_any);
  STD_TORCH_CHECK(query.dim() == 3 && query.size(0) == 1, "attend: expected query (1, N, C)");
  Attention a =
      attention_to(keys, values, padding, sentence, query.size(1), query.size(2), heads, query.scalar_type());
  a.type = scalar_of(query);
  Tensor out = torch::stable::new_empty(query, query.sizes());
  a.query = query.const_data_ptr(), a.out = out.mutable_data_ptr();
  run(a);
  return out;
}

// ---- One decoding step of all blocks of a decoder (section 5.1) ----

// Returns the number of outputs of the linear layer that has this bias.
int64_t outputs(const Tensor& bias) {
  STD_TORCH_CHECK(bias.dim() == 1 && bias.size(0) > 0, "decoder_step: expected biases (out,)");
  return bias.size(0);
}

constexpr size_t kWeights = 19;  // of a block, in the order of ops.BlockWeights

// Makes a block of C channels from its weights and the source that it attends to. The caller sets the step's state.
Block block_of(const Tensor* weights, int64_t C, int64_t K, const Attention& attention, const Options& options) {
  const Tensor &in_weight = weights[0], &in_bias = weights[1], &kernel = weights[2];
  const Tensor &out_weight = weights[3], &out_bias = weights[4];
  const Tensor &query_weight = weights[7], &query_bias = weights[8];
  const Tensor &attended_weight = weights[9], &attended_bias = weights[10];
  const Tensor &first_weight = weights[13], &first_bias = weights[14];
  const Tensor &second_weight = weights[15], &second_bias = weights[16];
  const int64_t wide = outputs(in_bias), queries = outputs(query_bias), hidden = outputs(first_bias);
  STD_TORCH_CHECK(!options.gated || wide % 2 == 0, "decoder_step: a gated layer has an odd width");
  const int64_t inner = options.gated ? wide / 2 : wide;
  STD_TORCH_CHECK(options.conv_heads > 0 && inner % options.conv_heads == 0,
                  "decoder_step: the convolution's heads do not divide its channels");
  for (const Tensor* bias : {&out_bias, &attended_bias, &second_bias})
    STD_TORCH_CHECK(outputs(*bias) == C, "decoder_step: the output of a sublayer has another width than x");

  Block block{};
  block.in = layer_of(in_weight, &in_bias, C, wide);
  block.out = layer_of(out_weight, &out_bias, inner, C);
  block.query = layer_of(query_weight, &query_bias, C, queries);
  block.attended = layer_of(attended_weight, &attended_bias, queries, C);
  block.first = layer_of(first_weight, &first_bias, C, hidden);
  block.second = layer_of(second_weight, &second_bias, hidden, C);
  block.mixer_norm = norm_of(weights[5], weights[6], C, options.eps);
  block.attention_norm = norm_of(weights[11], weights[12], C, options.eps);
  block.ffn_norm = norm_of(weights[17], weights[18], C, options.eps);
  block.attention = attention;
  block.widest = std::max({C, wide, options.conv_heads * K, queries, hidden});

  Step& step = block.step;
  step.N = options.N, step.C = inner, step.K = K, step.H = options.conv_heads, step.type = Scalar::f32;
  step.dynamic = options.dynamic, step.softmax = true;
  if (options.dynamic) {
    block.kernels = layer_of(kernel, nullptr, inner, options.conv_heads * K);
  } else {
    STD_TORCH_CHECK(kernel.dim() == 2 && kernel.size(0) == options.conv_heads && kernel.size(1) == K,
                    "decoder_step: expected a kernel (H, K)");
    step.weight = float32(kernel);
  }
  return block;
}

// Calls body(first row, number of rows) on threads, for parts of N rows of C numbers.
template <class Body>
void on_rows(int64_t N, int64_t C, const Body& body) {
  on_threads(N, kWorth / (4 * C + 1), 0, [&](void*, int64_t begin, int64_t end) { body(begin, end - begin); });
}

// Computes a block of C channels in place: sum (N, C). `scratch` has room for 3 * N * block.widest numbers.
void run(const Block& block, const Options& options, int64_t C, float* sum, float* scratch) {
  const int64_t N = options.N, inner = block.step.C;
  float *input = scratch, *a = input + N * block.widest, *b = a + N * block.widest;
  const Kernels& chosen = kernels();
  const auto begin = [&](const LayerNorm& norm) -> const float* {  // the input of a sublayer
    if (!options.norm_first) return sum;
    on_rows(N, C, [&](int64_t n, int64_t rows) { chosen.normalize(norm, sum + n * C, rows, C, input + n * C); });
    return input;
  };
  const auto end = [&](const LayerNorm& norm, const float* y) {
    on_rows(N, C, [&](int64_t n, int64_t rows) {
      for (int64_t i = n * C; i < (n + rows) * C; ++i) sum[i] += y[i];
      if (!options.norm_first) chosen.normalize(norm, sum + n * C, rows, C, sum + n * C);
    });
  };

  compute(block.in, N, begin(block.mixer_norm), a);
  if (options.gated) {
    on_rows(N, 4 * inner, [&](int64_t n, int64_t rows) {
      chosen.gate(a + 2 * n * inner, rows, inner, b + n * inner);
    });
    std::swap(a, b);
  }
  Step step = block.step;
  if (options.dynamic) {
    compute(block.kernels, N, a, input);  // its former contents are no longer needed
    step.weight = input;
  }
  step.x = a, step.out = b;
  run(step);
  compute(block.out, N, b, a);
  end(block.mixer_norm, a);

  compute(block.query, N, begin(block.attention_norm), a);
  Attention attention = block.attention;
  attention.query = a, attention.out = b;
  run(attention);
  compute(block.attended, N, b, a);
  end(block.attention_norm, a);

  compute(block.first, N, begin(block.ffn_norm), a, /*relu=*/true);
  compute(block.second, N, a, b);
  end(block.ffn_norm, b);
}

// Computes all blocks at the newest position; ops.decoder_step describes the arguments.
Tensor decoder_step(const Tensor& x_any, std::vector<Tensor> weights, std::vector<Tensor> rings, Tensor ancestors,
                    Tensor position, std::vector<Tensor> keys, std::vector<Tensor> values, std::optional<Tensor> padding,
                    const Tensor& sentence, int64_t conv_heads, int64_t heads, bool gated, bool dynamic, bool norm_first,
                    double eps) {
  const Tensor x = as_contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.size(2) > 0, "decoder_step: expected x (1, N, C)");
  const int64_t N = x.size(1), C = x.size(2);
  Decoder decoder = decoder_of(C, weights, rings, keys, values, padding, sentence,
                               {N, conv_heads, heads, gated, dynamic, norm_first, eps});
  check_history(ancestors, position, decoder.slots, N);
  decoder.ancestors = static_cast<int32_t*>(ancestors.mutable_data_ptr());
  decoder.inputs = &inputs_of(position);
  Tensor result = torch::stable::new_empty(x, x.sizes());
  float* sum = static_cast<float*>(result.mutable_data_ptr());
  std::copy_n(float32(x), N * C, sum);
  Team::lead([&] { run(decoder, sum); });
  return result;
}

}  // namespace

Linear layer_of(const Tensor& weight, const Tensor* bias, int64_t in, int64_t out) {
  Linear layer{};
  layer.in = in, layer.out = out;
  if (weight.dim() == 2 && weight.scalar_type() == ScalarType::Float) {
    STD_TORCH_CHECK(weight.size(0) == out && weight.size(1) == in, "decoder_step: expected a weight (", out, ", ", in,
                    "); got (", weight.size(0), ", ", weight.size(1), ")");
    layer.weight = float32(weight);
  } else {
    layer.packed = packed_weight(weight, out, in);
  }
  if (bias != nullptr) layer.bias = float32(*bias);
  return layer;
}

LayerNorm norm_of(const Tensor& scale, const Tensor& shift, int64_t C, double eps) {
  for (const Tensor* each : {&scale, &shift})
    STD_TORCH_CHECK(each->dim() == 1 && each->size(0) == C, "decoder_step: expected layer norms of ", C, " channels");
  return {float32(scale), float32(shift), static_cast<float>(eps)};
}

void compute(Linear layer, int64_t rows, const float* x, float* y, bool relu) {
  layer.rows = rows, layer.x = x, layer.y = y, layer.relu = relu;
  run(layer);
}

Decoder decoder_of(int64_t C, const std::vector<Tensor>& weights, const std::vector<Tensor>& rings,
                   const std::vector<Tensor>& keys, const std::vector<Tensor>& values,
                   const std::optional<Tensor>& padding, const Tensor& sentence, const Options& options) {
  const size_t count = rings.size();
  STD_TORCH_CHECK(weights.size() == kWeights * count && keys.size() == count && values.size() == count,
                  "decoder_step: expected for each of ", count, " rings ", kWeights, " weights, keys and values; got ",
                  weights.size(), ", ", keys.size(), " and ", values.size());
  Decoder decoder{options, C, /*widest=*/0, /*slots=*/0, {}, rings, nullptr, nullptr};
  for (size_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(rings[i].dim() == 3 && rings[i].size(0) > 0, "decoder_step: expected rings (K, M, C)");
    const Tensor* own = weights.data() + kWeights * i;
    Attention attention = attention_to(keys[i], values[i], padding, sentence, options.N, outputs(own[8]), options.heads,
                                       ScalarType::Float);
    attention.type = Scalar::f32;
    const int64_t K = rings[i].size(0);
    Block block = block_of(own, C, K, attention, options);
    block.step.M = check_ring(rings[i], options.N, block.step.C, K, ScalarType::Float);
    decoder.slots += K, decoder.widest = std::max(decoder.widest, block.widest);
    decoder.blocks.push_back(block);
  }
  return decoder;
}

void run(Decoder& decoder, float* sum) {
  int32_t* rows = decoder.ancestors;
  for (size_t i = 0; i < decoder.blocks.size(); ++i) {  // all are checked before the first state changes
    Step& step = decoder.blocks[i].step;
    take_state(step, decoder.rings[i], rows, *decoder.inputs);
    rows += step.K * decoder.options.N;
  }
  thread_local std::vector<float> scratch;  // kept from step to step
  scratch.resize(3 * decoder.options.N * decoder.widest);
  for (const Block& block : decoder.blocks) run(block, decoder.options, decoder.C, sum, scratch.data());
  ++*decoder.inputs;
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("decoder_step", TORCH_BOX(&decoder_step));
}

}  // namespace lightconv
