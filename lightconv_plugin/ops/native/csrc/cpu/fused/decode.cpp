// Generation on a CPU: attention over a sentence, the best continuations, and one step of a whole decoder block.
#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cpu/fused/linear.h"

namespace lightconv {
namespace {

// Attention of N queries of C channels to the sentences of a state; query and out are left to the caller.
Attention attention_to(const Tensor& keys, const Tensor& values, const std::optional<Tensor>& padding,
                       const Tensor& sentence, int64_t N, int64_t C, int64_t heads, ScalarType type) {
  check_attention(keys, values, padding, sentence, N, C, heads, type);
  Attention a{};
  a.N = N, a.C = C, a.H = heads, a.S = keys.size(1);
  const int64_t sentences = keys.size(0);
  a.sentence = static_cast<const int64_t*>(sentence.const_data_ptr());
  for (int64_t n = 0; n < N; ++n)
    STD_TORCH_CHECK(a.sentence[n] >= 0 && a.sentence[n] < sentences,
                    "attend: a row names a sentence that there is not");
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
  check_candidates(logits, scores, limits, beams);
  Search search{};
  search.N = logits.size(0), search.V = logits.size(1);
  for (int64_t token : {pad, eos, unk})
    STD_TORCH_CHECK(token >= 0 && token < search.V, "step_candidates: a special token is outside the vocabulary");
  search.count = std::min(count, search.V);
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
  STD_TORCH_CHECK(count > 0 && count <= pool, "step_candidates: more candidates are asked for than there are");
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

// ---- One decoding step of a whole decoder block (section 5.1) ----

// The block's parameters, one after the other in the order that library.cpp has.
class Parameters {
 public:
  Parameters(const std::vector<Tensor>& all, const std::vector<Tensor>& packed) : all_(all), packed_(packed) {}

  const Tensor& next() {
    STD_TORCH_CHECK(used_ < all_.size(), "decoder_block: there are too few parameters");
    return all_[used_++];
  }

  const float* vector(int64_t size) {
    const Tensor& found = next();
    STD_TORCH_CHECK(found.dim() == 1 && found.size(0) == size, "decoder_block: a bias or norm has another size");
    return float32(found);
  }

  Linear linear(int64_t in, bool bias = true) {
    const Tensor& weight = next();
    STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == in, "decoder_block: a weight is not (out, in)");
    Linear found{};
    found.in = in, found.out = weight.size(0);
    found.weight = float32(weight);
    if (!packed_.empty()) {
      STD_TORCH_CHECK(maps_ < packed_.size(), "decoder_block: there are too few packed weights");
      found.packed = packed_weight(packed_[maps_++], found.out, in);
    }
    if (bias) found.bias = vector(found.out);
    return found;
  }

  LayerNorm norm(int64_t size, double eps) {
    const float* scale = vector(size);
    return {scale, vector(size), static_cast<float>(eps)};
  }

  void finish() const {
    STD_TORCH_CHECK(used_ == all_.size() && maps_ == packed_.size(), "decoder_block: there are too many parameters");
  }

 private:
  const std::vector<Tensor>&all_, &packed_;
  size_t used_ = 0, maps_ = 0;
};

void map(Linear linear, int64_t rows, const float* x, float* y) {
  linear.rows = rows, linear.x = x, linear.y = y;
  run(linear);
}

// body(begin, end) for parts of N rows of C numbers
template <class Body>
void on_rows(int64_t N, int64_t C, const Body& body) {
  on_threads(N, kWorth / (4 * C + 1), 0, [&](void*, int64_t begin, int64_t end) { body(begin, end - begin); });
}

Tensor decoder_block(const Tensor& x_any, std::vector<Tensor> parameters, std::vector<Tensor> packed, Tensor ring,
                     Tensor ancestors, Tensor position, const Tensor& keys, const Tensor& values, std::optional<Tensor> padding,
                     const Tensor& sentence, int64_t heads, bool gated, bool dynamic, bool norm_first, double eps) {
  const Tensor x = as_contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1, "decoder_block: expected x (1, N, C)");
  const float* given = float32(x);
  STD_TORCH_CHECK(ring.dim() == 3, "decoder_block: expected ring (K, M, C)");
  const int64_t N = x.size(1), C = x.size(2), K = ring.size(0);
  Parameters next(parameters, packed);

  const Linear in = next.linear(C);
  STD_TORCH_CHECK(!gated || in.out % 2 == 0, "decoder_block: a gated map has an odd width");
  const int64_t inner = gated ? in.out / 2 : in.out;
  Step step{};
  step.N = N, step.C = inner, step.K = K, step.type = Scalar::f32, step.dynamic = dynamic, step.softmax = true;
  Linear predictor{};
  if (dynamic) {
    predictor = next.linear(inner, /*bias=*/false);
    step.H = predictor.out / K;
    STD_TORCH_CHECK(step.H * K == predictor.out, "decoder_block: the kernels' width is not that of the ring");
  } else {
    const Tensor& weight = next.next();
    STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == K, "decoder_block: expected a kernel (H, K)");
    step.H = weight.size(0);
    step.weight = float32(weight);
  }
  STD_TORCH_CHECK(step.H > 0 && inner % step.H == 0, "decoder_block: the heads do not divide the channels");
  const Linear out = next.linear(inner);
  const LayerNorm mixed = next.norm(C, eps);
  const Linear query = next.linear(C), from_source = next.linear(query.out);
  const LayerNorm attended = next.norm(C, eps);
  const Linear wide = next.linear(C), narrow = next.linear(wide.out);
  const LayerNorm last = next.norm(C, eps);
  next.finish();
  STD_TORCH_CHECK(out.out == C && from_source.out == C && narrow.out == C,
                  "decoder_block: a part gives another width than the block's");
  Attention attention = attention_to(keys, values, padding, sentence, N, query.out, heads, ScalarType::Float);
  attention.type = Scalar::f32;
  step.M = check_ring(ring, ancestors, position, N, inner, K, ScalarType::Float);
  take_state(step, ring, ancestors, position);

  thread_local std::vector<float> scratch;  // kept from step to step
  const int64_t most = std::max({C, in.out, predictor.out, query.out, wide.out});
  scratch.resize(3 * N * most);
  float *input = scratch.data(), *a = input + N * most, *b = a + N * most;
  Tensor result = torch::stable::new_empty(x, x.sizes());
  float* sum = static_cast<float*>(result.mutable_data_ptr());
  std::copy(given, given + N * C, sum);
  const Kernels& chosen = kernels();
  const auto begin = [&](const LayerNorm& norm) -> const float* {  // what a part reads
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

  map(in, N, begin(mixed), a);
  if (gated) {
    on_rows(N, 4 * inner, [&](int64_t n, int64_t rows) {
      chosen.gate(a + 2 * n * inner, rows, inner, b + n * inner);
    });
    std::swap(a, b);
  }
  if (dynamic) {
    map(predictor, N, a, input);  // what it held has been read
    step.weight = input;
  }
  step.x = a, step.out = b;
  run(step);
  map(out, N, b, a);
  end(mixed, a);

  map(query, N, begin(attended), a);
  attention.query = a, attention.out = b;
  run(attention);
  map(from_source, N, b, a);
  end(attended, a);

  map(wide, N, begin(last), a);
  on_rows(N, wide.out, [&](int64_t n, int64_t rows) {
    for (int64_t i = n * wide.out; i < (n + rows) * wide.out; ++i) a[i] = std::max(a[i], 0.0f);  // NaN stays
  });
  map(narrow, N, a, b);
  end(last, b);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("decoder_block", TORCH_BOX(&decoder_block));
}

}  // namespace lightconv
