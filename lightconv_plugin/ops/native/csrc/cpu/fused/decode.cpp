// Generation on a CPU: attention over a sentence, the best continuations, and one step of a whole decoder block.
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

// ---- One decoding step of a whole decoder block (section 5.1) ----

// Makes a linear layer from its weight, (out, in) or packed by pack_weight, and its bias, or null.
Linear layer_of(const Tensor& weight, const Tensor* bias, int64_t in, int64_t out) {
  Linear layer{};
  layer.in = in, layer.out = out;
  if (weight.dim() == 2 && weight.scalar_type() == ScalarType::Float) {
    STD_TORCH_CHECK(weight.size(0) == out && weight.size(1) == in, "decoder_block: expected a weight (", out, ", ", in,
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
    STD_TORCH_CHECK(each->dim() == 1 && each->size(0) == C, "decoder_block: expected layer norms of ", C, " channels");
  return {float32(scale), float32(shift), static_cast<float>(eps)};
}

// Returns the number of outputs of the linear layer that has this bias.
int64_t outputs(const Tensor& bias) {
  STD_TORCH_CHECK(bias.dim() == 1 && bias.size(0) > 0, "decoder_block: expected biases (out,)");
  return bias.size(0);
}

// The linear layers and layer norms of a block. in and out: before and after the convolution, whose kernels `kernels`
// predicts. query and attended: before and after the attention. first and second: the feed-forward network.
struct Block {
  Linear in, kernels, out, query, attended, first, second;
  LayerNorm mixer_norm, attention_norm, ffn_norm;
};

void compute(Linear layer, int64_t rows, const float* x, float* y, bool relu = false) {
  layer.rows = rows, layer.x = x, layer.y = y, layer.relu = relu;
  run(layer);
}

// Calls body(first row, number of rows) on threads, for parts of N rows of C numbers.
template <class Body>
void on_rows(int64_t N, int64_t C, const Body& body) {
  on_threads(N, kWorth / (4 * C + 1), 0, [&](void*, int64_t begin, int64_t end) { body(begin, end - begin); });
}

// The names of the weights are those of ops.BlockWeights.
Tensor decoder_block(const Tensor& x_any, const Tensor& in_weight, const Tensor& in_bias, const Tensor& kernel,
                     const Tensor& out_weight, const Tensor& out_bias, const Tensor& mixer_norm_weight,
                     const Tensor& mixer_norm_bias, const Tensor& query_weight, const Tensor& query_bias,
                     const Tensor& attended_weight, const Tensor& attended_bias, const Tensor& attention_norm_weight,
                     const Tensor& attention_norm_bias, const Tensor& first_weight, const Tensor& first_bias,
                     const Tensor& second_weight, const Tensor& second_bias, const Tensor& ffn_norm_weight,
                     const Tensor& ffn_norm_bias, Tensor ring, Tensor ancestors, Tensor position, const Tensor& keys,
                     const Tensor& values, std::optional<Tensor> padding, const Tensor& sentence, int64_t conv_heads,
                     int64_t heads, bool gated, bool dynamic, bool norm_first, double eps) {
  const Tensor x = as_contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.size(2) > 0, "decoder_block: expected x (1, N, C)");
  const float* given = float32(x);
  STD_TORCH_CHECK(ring.dim() == 3 && ring.size(0) > 0, "decoder_block: expected ring (K, M, C)");
  const int64_t N = x.size(1), C = x.size(2), K = ring.size(0), wide = outputs(in_bias);
  STD_TORCH_CHECK(!gated || wide % 2 == 0, "decoder_block: a gated layer has an odd width");
  const int64_t inner = gated ? wide / 2 : wide;
  STD_TORCH_CHECK(conv_heads > 0 && inner % conv_heads == 0,
                  "decoder_block: the convolution's heads do not divide its channels");

  Block block{};
  block.in = layer_of(in_weight, &in_bias, C, wide);
  Step step{};
  step.N = N, step.C = inner, step.K = K, step.H = conv_heads, step.type = Scalar::f32;
  step.dynamic = dynamic, step.softmax = true;
  if (dynamic) {
    block.kernels = layer_of(kernel, nullptr, inner, conv_heads * K);
  } else {
    STD_TORCH_CHECK(kernel.dim() == 2 && kernel.size(0) == conv_heads && kernel.size(1) == K,
                    "decoder_block: expected a kernel (H, K)");
    step.weight = float32(kernel);
  }
  const int64_t queries = outputs(query_bias), hidden = outputs(first_bias);
  for (const Tensor* bias : {&out_bias, &attended_bias, &second_bias})
    STD_TORCH_CHECK(outputs(*bias) == C, "decoder_block: the output of a sublayer has another width than x");
  block.out = layer_of(out_weight, &out_bias, inner, C);
  block.query = layer_of(query_weight, &query_bias, C, queries);
  block.attended = layer_of(attended_weight, &attended_bias, queries, C);
  block.first = layer_of(first_weight, &first_bias, C, hidden);
  block.second = layer_of(second_weight, &second_bias, hidden, C);
  block.mixer_norm = norm_of(mixer_norm_weight, mixer_norm_bias, C, eps);
  block.attention_norm = norm_of(attention_norm_weight, attention_norm_bias, C, eps);
  block.ffn_norm = norm_of(ffn_norm_weight, ffn_norm_bias, C, eps);
  Attention attention = attention_to(keys, values, padding, sentence, N, queries, heads, ScalarType::Float);
  attention.type = Scalar::f32;
  step.M = check_ring(ring, ancestors, position, N, inner, K, ScalarType::Float);
  take_state(step, ring, ancestors, position);

  thread_local std::vector<float> scratch;  // kept from step to step
  const int64_t most = std::max({C, wide, conv_heads * K, queries, hidden});
  scratch.resize(3 * N * most);
  float *input = scratch.data(), *a = input + N * most, *b = a + N * most;
  Tensor result = torch::stable::new_empty(x, x.sizes());
  float* sum = static_cast<float*>(result.mutable_data_ptr());
  std::copy(given, given + N * C, sum);
  const Kernels& chosen = kernels();
  const auto begin = [&](const LayerNorm& norm) -> const float* {  // the input of a sublayer
    if (!norm_first) return sum;
    on_rows(N, C, [&](int64_t n, int64_t rows) { chosen.normalize(norm, sum + n * C, rows, C, input + n * C); });
    return input;
  };
  const auto end = [&](const LayerNorm& norm, const float* y) {
    on_rows(N, C, [&](int64_t n, int64_t rows) {
      for (int64_t i = n * C; i < (n + rows) * C; ++i) sum[i] += y[i];
      if (!norm_first) chosen.normalize(norm, sum + n * C, rows, C, sum + n * C);
    });
  };

  compute(block.in, N, begin(block.mixer_norm), a);
  if (gated) {
    on_rows(N, 4 * inner, [&](int64_t n, int64_t rows) {
      chosen.gate(a + 2 * n * inner, rows, inner, b + n * inner);
    });
    std::swap(a, b);
  }
  if (dynamic) {
    compute(block.kernels, N, a, input);  // its former contents are no longer needed
    step.weight = input;
  }
  step.x = a, step.out = b;
  run(step);
  compute(block.out, N, b, a);
  end(block.mixer_norm, a);

  compute(block.query, N, begin(block.attention_norm), a);
  attention.query = a, attention.out = b;
  run(attention);
  compute(block.attended, N, b, a);
  end(block.attention_norm, a);

  compute(block.first, N, begin(block.ffn_norm), a, /*relu=*/true);
  compute(block.second, N, a, b);
  end(block.ffn_norm, b);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("search_step", TORCH_BOX(&search_step));
  m.impl("decoder_block", TORCH_BOX(&decoder_block));
}

}  // namespace lightconv
