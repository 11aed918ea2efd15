// Generation on a CPU: attention over a sentence, the best continuations, and one step of all blocks of a decoder.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cpu/fused/linear.h"

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

void run(const Search& search) {
  on_threads(search.N, kWorth / (8 * search.V), best_scratch(search),
             [&](void* scratch, int64_t begin, int64_t end) { kernels().best(search, scratch, begin, end); });
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

std::tuple<Tensor, Tensor, Tensor> step_candidates(const Tensor& logits_any, const Tensor& scores_any,
                                                   const Tensor& limits, int64_t beams, int64_t count, double temperature,
                                                   int64_t pad, int64_t eos, int64_t unk, double unk_penalty) {
  const Tensor logits = as_contiguous(logits_any), scores = as_contiguous(scores_any);
  check_candidates(logits, scores, limits, beams, temperature, {pad, eos, unk});
  Search search{};
  search.N = logits.size(0), search.V = logits.size(1);
  search.count = std::min(count, search.V);
  STD_TORCH_CHECK(count > 0 && count <= beams * search.count,
                  "step_candidates: expected a count of 1 to beams * V continuations; got ", count);
  search.logits = float32(logits), search.scores = float32(scores);
  search.temperature = static_cast<float>(temperature), search.unk_penalty = static_cast<float>(unk_penalty);
  const auto* limit = static_cast<const int64_t*>(limits.const_data_ptr());
  search.pad = pad, search.unk = unk;
  search.banned = limit[0] < limit[1] ? eos : -1, search.only = limit[0] >= limit[2] ? eos : -1;
  std::vector<float> row_values(search.N * search.count);
  std::vector<int32_t> row_tokens(search.N * search.count);
  search.values = row_values.data(), search.tokens = row_tokens.data();
  run(search);

  const int64_t sentences = search.N / beams, pool = beams * search.count;
  Tensor values = torch::stable::new_empty(logits, {sentences, count});
  Tensor tokens = torch::stable::new_empty(logits, {sentences, count}, ScalarType::Long);
  Tensor from = torch::stable::new_empty(logits, {sentences, count}, ScalarType::Long);
  auto* value = static_cast<float*>(values.mutable_data_ptr());
  auto* token = static_cast<int64_t*>(tokens.mutable_data_ptr());
  auto* beam = static_cast<int64_t*>(from.mutable_data_ptr());
  std::vector<int64_t> order(pool);
  for (int64_t s = 0; s < sentences; ++s) {
    const float* own = row_values.data() + s * pool;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + count, order.end(),
                      [&](int64_t i, int64_t j) { return own[i] != own[j] ? own[i] > own[j] : i < j; });
    for (int64_t i = 0; i < count; ++i) {
      value[s * count + i] = own[order[i]];
      token[s * count + i] = row_tokens[s * pool + order[i]];
      beam[s * count + i] = order[i] / search.count;
    }
  }
  return {values, tokens, from};
}

// ---- The end of a step of a search; ops.search_step is the reference implementation ----

constexpr int64_t kNever = -1;

template <class T>
T* numbers(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

void search_step(const Tensor& values, const Tensor& candidates, const Tensor& origins, Tensor limits, Tensor clock,
                 const Tensor& penalties, Tensor newest, Tensor scores, Tensor order, Tensor words, Tensor parents,
                 Tensor sums, Tensor steps, Tensor rows, Tensor totals, Tensor ranks, Tensor open, Tensor ancestors,
                 int64_t eos, bool stepwise) {
  const auto [N, sentences, beams, longest, slots] =
      check_search(values, candidates, origins, limits, clock, penalties, newest, scores, order, words, parents, sums, steps,
                   rows, totals, ranks, open, ancestors);
  const int64_t step = numbers<int64_t>(limits)[0], last_step = numbers<int64_t>(limits)[2];
  STD_TORCH_CHECK(step >= 0 && step < longest, "search_step: step ", step, " of a search of ", longest, " steps");
  for (int64_t i = 0; i < 2 * N; ++i)
    STD_TORCH_CHECK(numbers<int64_t>(origins)[i] >= 0 && numbers<int64_t>(origins)[i] < beams,
                    "search_step: a candidate continues a hypothesis that its sentence does not have");
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  struct Ended {
    int64_t step, row;
    float total;
    double rank;
  };
  std::vector<Ended> ended;
  std::vector<float> value(2 * beams);
  std::vector<double> rank(beams);
  std::vector<int64_t> goes_on;
  std::vector<int32_t> slot_rows(beams);
  for (int64_t s = 0; s < sentences; ++s) {
    const int64_t first = s * beams;
    const int64_t *word = numbers<int64_t>(candidates) + 2 * first, *from = numbers<int64_t>(origins) + 2 * first;
    std::copy_n(numbers<float>(values) + 2 * first, 2 * beams, value.begin());
    double* held = numbers<double>(ranks) + first;
    bool& is_open = numbers<bool>(open)[s];

    int64_t admitted = 2 * beams;
    std::fill(rank.begin(), rank.end(), 0.0);
    if (stepwise) {  // admits a candidate if fewer than `beams` are better: earlier candidates, finished hypotheses
      admitted = beams;
      for (int64_t j = beams - 1; j >= 0; --j) {
        rank[j] = value[j] / numbers<double>(penalties)[step];
        const auto better = std::count_if(held, held + beams, [&](double other) { return other >= rank[j]; });
        if (better >= beams - j || value[j] == kNone) admitted = j;
      }
      std::fill(value.begin() + admitted, value.end(), kNone);
    }
    const auto ends = [&](int64_t j) { return word[j] == eos && value[j] != kNone; };

    goes_on.clear(), ended.clear();
    for (int64_t j = 0; j < 2 * beams; ++j)
      if (!ends(j)) goes_on.push_back(j);
    for (int64_t j = 0; j < 2 * beams; ++j)
      if (ends(j)) goes_on.push_back(j);
    for (int64_t i = 0; i < beams; ++i) {
      const int64_t at = first + i, chosen = goes_on[i], table = step * N + at;
      numbers<int64_t>(newest)[at] = numbers<int64_t>(words)[table] = word[chosen];
      numbers<float>(scores)[at] = numbers<float>(sums)[table] = value[chosen];
      numbers<int64_t>(order)[at] = numbers<int64_t>(parents)[table] = first + from[chosen];
    }
    for (int64_t slot = 0; slot < slots; ++slot) {
      int32_t* row = numbers<int32_t>(ancestors) + slot * N + first;
      std::copy_n(row, beams, slot_rows.begin());
      for (int64_t i = 0; i < beams; ++i) row[i] = slot_rows[from[goes_on[i]]];
    }

    int64_t known = 0, count = 0;
    for (int64_t i = 0; i < beams; ++i) {
      const int64_t at = first + i;
      ended.push_back({numbers<int64_t>(steps)[at], numbers<int64_t>(rows)[at], numbers<float>(totals)[at], held[i]});
      known += ended.back().step != kNever;
    }
    for (int64_t j = 0; is_open && j < beams; ++j) {
      if (!ends(j)) continue;
      ended.push_back({step, first + from[j], value[j], rank[j]});
      ++count, ++known;
    }
    std::stable_sort(ended.begin(), ended.end(), [](const Ended& a, const Ended& b) { return a.rank > b.rank; });
    for (int64_t i = 0; i < beams; ++i) {
      const int64_t at = first + i;
      numbers<int64_t>(steps)[at] = ended[i].step, numbers<int64_t>(rows)[at] = ended[i].row;
      numbers<float>(totals)[at] = ended[i].total, held[i] = ended[i].rank;
    }
    is_open = is_open && (stepwise ? known == 0 || admitted > count : count == 0 || (step < last_step && known < beams));
  }
  numbers<int64_t>(limits)[0] = step + 1;
  for (int64_t s = 0; s < sentences; ++s) ++numbers<int64_t>(clock)[s];
}

// ---- One decoding step of all blocks of a decoder (section 5.1) ----

// Makes a linear layer from its weight, (out, in) or packed by pack_weight, and its bias, or null.
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

// Returns the number of outputs of the linear layer that has this bias.
int64_t outputs(const Tensor& bias) {
  STD_TORCH_CHECK(bias.dim() == 1 && bias.size(0) > 0, "decoder_step: expected biases (out,)");
  return bias.size(0);
}

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

void compute(Linear layer, int64_t rows, const float* x, float* y, bool relu = false) {
  layer.rows = rows, layer.x = x, layer.y = y, layer.relu = relu;
  run(layer);
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
  const size_t count = rings.size();
  STD_TORCH_CHECK(weights.size() == kWeights * count && keys.size() == count && values.size() == count,
                  "decoder_step: expected for each of ", count, " rings ", kWeights, " weights, keys and values; got ",
                  weights.size(), ", ", keys.size(), " and ", values.size());
  const Options options{N, conv_heads, heads, gated, dynamic, norm_first, eps};
  std::vector<Block> blocks;
  int64_t slots = 0, widest = 0;
  for (size_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(rings[i].dim() == 3 && rings[i].size(0) > 0, "decoder_step: expected rings (K, M, C)");
    const Tensor* own = weights.data() + kWeights * i;
    Attention attention =
        attention_to(keys[i], values[i], padding, sentence, N, outputs(own[8]), heads, ScalarType::Float);
    attention.type = Scalar::f32;
    const int64_t K = rings[i].size(0);
    blocks.push_back(block_of(own, C, K, attention, options));
    blocks.back().step.M = check_ring(rings[i], N, blocks.back().step.C, K, ScalarType::Float);
    slots += K, widest = std::max(widest, blocks.back().widest);
  }
  check_history(ancestors, position, slots, N);
  int64_t& inputs = inputs_of(position);
  auto* rows = static_cast<int32_t*>(ancestors.mutable_data_ptr());
  for (size_t i = 0; i < count; ++i) {
    take_state(blocks[i].step, rings[i], rows, inputs);
    rows += blocks[i].step.K * N;
  }

  thread_local std::vector<float> scratch;  // kept from step to step
  scratch.resize(3 * N * widest);
  Tensor result = torch::stable::new_empty(x, x.sizes());
  float* sum = static_cast<float*>(result.mutable_data_ptr());
  std::copy_n(float32(x), N * C, sum);
  for (const Block& block : blocks) run(block, options, C, sum, scratch.data());
  ++inputs;
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("search_step", TORCH_BOX(&search_step));
  m.impl("decoder_step", TORCH_BOX(&decoder_step));
}

}  // namespace lightconv
