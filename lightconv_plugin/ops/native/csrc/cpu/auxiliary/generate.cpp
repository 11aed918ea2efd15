// What generation needs beside the convolutions: attention over a sentence, the best continuations, maps of a few rows.
#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/auxiliary/run.h"
#include "cpu/scalar.h"

namespace lightconv {
namespace {

Tensor attend(const Tensor& query_any, const Tensor& keys, const Tensor& values, std::optional<Tensor> padding,
              const Tensor& sentence, int64_t heads) {
  const Tensor query = torch::stable::contiguous(query_any);
  STD_TORCH_CHECK(query.dim() == 3 && query.size(0) == 1, "attend: expected query (1, N, C)");
  Attention a =
      attention_to(keys, values, padding, sentence, query.size(1), query.size(2), heads, query.scalar_type());
  a.type = scalar_of(query);
  Tensor out = torch::stable::new_empty(query, query.sizes());
  a.query = query.const_data_ptr(), a.out = out.mutable_data_ptr();
  run(a);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> beam_candidates(const Tensor& logits_any, std::optional<Tensor> scores_any,
                                                   int64_t beams, int64_t count, double temperature, int64_t pad,
                                                   int64_t unk, double unk_penalty, int64_t banned, int64_t only) {
  const Tensor logits = torch::stable::contiguous(logits_any);
  STD_TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == ScalarType::Float,
                  "beam_candidates: expected logits (N, V), float32");
  Search search{};
  search.N = logits.size(0), search.V = logits.size(1);
  STD_TORCH_CHECK(beams > 0 && search.N % beams == 0 && count > 0, "beam_candidates: the beams do not divide the rows");
  for (int64_t token : {pad, unk, std::max<int64_t>(banned, 0), std::max<int64_t>(only, 0)})
    STD_TORCH_CHECK(token >= 0 && token < search.V, "beam_candidates: a special token is outside the vocabulary");
  search.count = std::min(count, search.V);
  search.logits = static_cast<const float*>(logits.const_data_ptr());
  std::optional<Tensor> scores;
  if (scores_any.has_value()) {
    scores = torch::stable::contiguous(*scores_any);
    STD_TORCH_CHECK(scores->numel() == search.N && scores->scalar_type() == ScalarType::Float,
                    "beam_candidates: expected scores (N,), float32");
    search.scores = static_cast<const float*>(scores->const_data_ptr());
  }
  search.temperature = static_cast<float>(temperature), search.unk_penalty = static_cast<float>(unk_penalty);
  search.pad = pad, search.unk = unk, search.banned = banned, search.only = only;
  std::vector<float> row_values(search.N * search.count);
  std::vector<int32_t> row_tokens(search.N * search.count);
  search.values = row_values.data(), search.tokens = row_tokens.data();
  run(search);

  const int64_t sentences = search.N / beams, pool = beams * search.count;
  STD_TORCH_CHECK(count <= pool, "beam_candidates: more candidates are asked for than there are");
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

Tensor few_rows_linear(const Tensor& x_any, const Tensor& weight, std::optional<Tensor> bias) {
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.is_contiguous(),
                  "few_rows_linear: expected x (..., in) and weight (out, in), contiguous");
  STD_TORCH_CHECK(!bias.has_value() || (bias->numel() == weight.size(0) && bias->is_contiguous()),
                  "few_rows_linear: expected bias (out,)");
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float && weight.scalar_type() == ScalarType::Float &&
                      (!bias.has_value() || bias->scalar_type() == ScalarType::Float),
                  "few_rows_linear: expected float32");
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = weight.size(0);
  Tensor out = torch::stable::new_empty(x, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()));
  Linear linear{};
  linear.in = weight.size(1), linear.out = weight.size(0);
  linear.rows = linear.in == 0 ? 0 : x.numel() / linear.in;
  linear.x = static_cast<const float*>(x.const_data_ptr());
  linear.weight = static_cast<const float*>(weight.const_data_ptr());
  linear.bias = bias.has_value() ? static_cast<const float*>(bias->const_data_ptr()) : nullptr;
  linear.y = static_cast<float*>(out.mutable_data_ptr());
  run(linear);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("beam_candidates", TORCH_BOX(&beam_candidates));
  m.impl("few_rows_linear", TORCH_BOX(&few_rows_linear));
}

}  // namespace lightconv
