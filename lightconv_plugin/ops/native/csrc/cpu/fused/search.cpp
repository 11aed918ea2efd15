// Beam search on a CPU: the best continuations, the end of a step, and a whole search by one decoder.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "checks.h"
#include "cpu/fused/decoder.h"

namespace lightconv {
namespace {

template <class T>
T* numbers(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// ---- The best continuations; ops.step_candidates is the reference implementation ----

// Rows that `best` fills for a Search, and room to choose a sentence's continuations from those of its hypotheses.
struct Pool {
  std::vector<float> values;
  std::vector<int32_t> tokens;
  std::vector<int64_t> order;
};

// Describes a search without its logits and scores.
Search search_of(int64_t N, int64_t V, int64_t beams, int64_t count, double temperature, const int64_t* limit, int64_t pad,
                 int64_t eos, int64_t unk, double unk_penalty) {
  Search search{};
  search.N = N, search.V = V, search.count = std::min(count, V);
  STD_TORCH_CHECK(count > 0 && count <= beams * search.count,
                  "step_candidates: expected a count of 1 to beams * V continuations; got ", count);
  search.temperature = static_cast<float>(temperature), search.unk_penalty = static_cast<float>(unk_penalty);
  search.pad = pad, search.unk = unk;
  search.banned = limit[0] < limit[1] ? eos : -1, search.only = limit[0] >= limit[2] ? eos : -1;
  return search;
}

// Finds the best continuations of each hypothesis.
void run(Search& search, Pool& pool) {
  pool.values.resize(search.N * search.count), pool.tokens.resize(search.N * search.count);
  search.values = pool.values.data(), search.tokens = pool.tokens.data();
  on_threads(search.N, kWorth / (8 * search.V), best_scratch(search),
             [&](void* scratch, int64_t begin, int64_t end) { kernels().best(search, scratch, begin, end); });
}

// Writes the `count` best continuations of sentence s, the best first: their scores, tokens and hypotheses.
void choose(const Search& search, Pool& pool, int64_t beams, int64_t s, int64_t count, float* value, int64_t* token,
            int64_t* beam) {
  const int64_t size = beams * search.count;
  const float* own = pool.values.data() + s * size;
  pool.order.resize(size);
  std::iota(pool.order.begin(), pool.order.end(), 0);
  std::partial_sort(pool.order.begin(), pool.order.begin() + count, pool.order.end(),
                    [&](int64_t i, int64_t j) { return own[i] != own[j] ? own[i] > own[j] : i < j; });
  for (int64_t i = 0; i < count; ++i) {
    const int64_t chosen = pool.order[i];
    value[i] = own[chosen], token[i] = pool.tokens[s * size + chosen], beam[i] = chosen / search.count;
  }
}

std::tuple<Tensor, Tensor, Tensor> step_candidates(const Tensor& logits_any, const Tensor& scores_any,
                                                   const Tensor& limits, int64_t beams, int64_t count, double temperature,
                                                   int64_t pad, int64_t eos, int64_t unk, double unk_penalty) {
  const Tensor logits = as_contiguous(logits_any), scores = as_contiguous(scores_any);
  check_candidates(logits, scores, limits, beams, temperature, {pad, eos, unk});
  Search search = search_of(logits.size(0), logits.size(1), beams, count, temperature,
                            static_cast<const int64_t*>(limits.const_data_ptr()), pad, eos, unk, unk_penalty);
  search.logits = float32(logits), search.scores = float32(scores);
  Pool pool;
  run(search, pool);
  const int64_t sentences = search.N / beams;
  Tensor values = torch::stable::new_empty(logits, {sentences, count});
  Tensor tokens = torch::stable::new_empty(logits, {sentences, count}, ScalarType::Long);
  Tensor from = torch::stable::new_empty(logits, {sentences, count}, ScalarType::Long);
  for (int64_t s = 0; s < sentences; ++s)
    choose(search, pool, beams, s, count, numbers<float>(values) + s * count, numbers<int64_t>(tokens) + s * count,
           numbers<int64_t>(from) + s * count);
  return {values, tokens, from};
}

// ---- The end of a step of a search; ops.search_step is the reference implementation ----

constexpr int64_t kNever = -1;

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

// ---- A whole search by one decoder; ops.beam_search describes the arguments ----

// The rows of a step: `width` hypotheses of each sentence whose search goes on, and `history`, the table (slots, rows) of
// the rings.
struct Rows {
  std::vector<int64_t> sentences;
  int64_t width;
  std::vector<int64_t> newest;
  std::vector<float> scores;
  std::vector<int32_t> history;
};

// Returns the rows of the next step, `beam` of each sentence that is still open.
Rows rows_after(const Rows& rows, int64_t slots, int64_t beam, const bool* open, const int64_t* newest,
                const float* scores, const int64_t* order) {
  Rows next{{}, beam, {}, {}, {}};
  std::vector<int64_t> source;
  for (size_t i = 0; i < rows.sentences.size(); ++i) {
    const int64_t s = rows.sentences[i];
    if (!open[s]) continue;
    next.sentences.push_back(s);
    for (int64_t row = s * beam; row < (s + 1) * beam; ++row) {
      source.push_back(i * rows.width + order[row] % beam);
      next.newest.push_back(newest[row]), next.scores.push_back(scores[row]);
    }
  }
  const size_t before = rows.newest.size(), after = source.size();
  next.history.resize(slots * after);
  for (int64_t slot = 0; slot < slots; ++slot)
    for (size_t n = 0; n < after; ++n) next.history[slot * after + n] = rows.history[slot * before + source[n]];
  return next;
}

// What a decoder computes before and after its blocks.
struct Ends {
  int64_t V, C;
  const float *words, *positions;  // (V, C), (longest, C) or null
  float scale;
  LayerNorm norm;  // without a scale if there is none
  Linear output;
};

Ends ends_of(const Tensor& embeddings, double scale, const std::optional<Tensor>& positions,
             const std::optional<Tensor>& norm_weight, const std::optional<Tensor>& norm_bias, double eps,
             const Tensor& out_weight, const std::optional<Tensor>& out_bias, int64_t longest) {
  STD_TORCH_CHECK(embeddings.dim() == 2 && embeddings.size(0) <= INT32_MAX && embeddings.size(1) > 0,
                  "beam_search: expected embeddings (V, C)");
  const int64_t V = embeddings.size(0), C = embeddings.size(1);
  Ends ends{V, C, float32(embeddings), nullptr, static_cast<float>(scale), {}, {}};
  if (positions.has_value()) {
    STD_TORCH_CHECK(positions->dim() == 2 && positions->size(0) >= longest && positions->size(1) == C,
                    "beam_search: expected embeddings of the positions (longest or more, C)");
    ends.positions = float32(*positions);
  }
  if (norm_weight.has_value() && norm_bias.has_value()) ends.norm = norm_of(*norm_weight, *norm_bias, C, eps);
  ends.output = layer_of(out_weight, out_bias.has_value() ? &*out_bias : nullptr, C, V);
  return ends;
}

// Writes the input of the first block: x (rows, C).
void embed(const Ends& ends, const Rows& rows, int64_t step, float* x) {
  for (const int64_t token : rows.newest) {
    STD_TORCH_CHECK(token >= 0 && token < ends.V, "beam_search: a token is outside the vocabulary");
    for (int64_t c = 0; c < ends.C; ++c) x[c] = ends.scale * ends.words[token * ends.C + c];
    for (int64_t c = 0; ends.positions != nullptr && c < ends.C; ++c) x[c] += ends.positions[step * ends.C + c];
    x += ends.C;
  }
}

void beam_search(std::vector<Tensor> beams, int64_t bos, const Tensor& embeddings, double scale,
                 std::optional<Tensor> positions, std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias,
                 const Tensor& out_weight, std::optional<Tensor> out_bias, std::vector<Tensor> weights,
                 std::vector<Tensor> rings, std::vector<Tensor> keys, std::vector<Tensor> values,
                 std::optional<Tensor> padding, int64_t conv_heads, int64_t heads, bool gated, bool dynamic,
                 bool norm_first, double eps, double temperature, int64_t pad, int64_t eos, int64_t unk,
                 double unk_penalty, bool stepwise) {
  STD_TORCH_CHECK(beams.size() == 15, "beam_search: expected the 15 tensors of ops.Beams; got ", beams.size());
  const Tensor &limits = beams[0], &clock = beams[1], &penalties = beams[2], &newest = beams[3], &scores = beams[4],
               &order = beams[5], &open = beams[13];
  const int64_t sentences = clock.numel(), beam = sentences > 0 ? newest.numel() / sentences : 0;
  const int64_t longest = penalties.numel(), count = 2 * beam;
  const Ends ends = ends_of(embeddings, scale, positions, norm_weight, norm_bias, eps, out_weight, out_bias, longest);
  const int64_t V = ends.V, C = ends.C;
  STD_TORCH_CHECK(temperature > 0, "beam_search: expected a temperature above 0; got ", temperature);
  for (const int64_t token : {bos, pad, eos, unk})
    STD_TORCH_CHECK(token >= 0 && token < V, "beam_search: a special token is outside the vocabulary");
  STD_TORCH_CHECK(count > 0 && count <= V, "beam_search: expected at most V / 2 beams; got ", beam);
  // the candidates; finished sentences have none
  Tensor best = torch::stable::new_empty(scores, {sentences, count});
  Tensor words = torch::stable::new_empty(scores, {sentences, count}, ScalarType::Long);
  Tensor origins = torch::stable::new_empty(scores, {sentences, count}, ScalarType::Long);
  check_search(best, words, origins, limits, clock, penalties, newest, scores, order, beams[6], beams[7], beams[8],
               beams[9], beams[10], beams[11], beams[12], open, beams[14]);
  const auto remove_candidates = [&] {
    std::fill_n(numbers<float>(best), sentences * count, -std::numeric_limits<float>::infinity());
    std::fill_n(numbers<int64_t>(words), sentences * count, 0);
    std::fill_n(numbers<int64_t>(origins), sentences * count, 0);
  };
  int64_t slots = 0, inputs = 0;
  for (const Tensor& ring : rings) slots += ring.dim() > 0 ? ring.size(0) : 0;

  Rows rows{{}, 1, {}, {}, {}};  // before the first token, a sentence has one row
  for (int64_t s = 0; s < sentences; ++s)
    if (numbers<bool>(open)[s]) rows.sentences.push_back(s);
  rows.newest.assign(rows.sentences.size(), bos), rows.scores.assign(rows.sentences.size(), 0.0f);
  rows.history.assign(slots * rows.sentences.size(), 0);
  std::vector<float> x, logits;
  Pool pool;
  Team::lead([&] {
    while (!rows.sentences.empty()) {
      const int64_t N = rows.newest.size();
      Tensor sentence = torch::stable::new_empty(scores, {N}, ScalarType::Long);
      for (int64_t n = 0; n < N; ++n) numbers<int64_t>(sentence)[n] = rows.sentences[n / rows.width];
      Decoder decoder = decoder_of(C, weights, rings, keys, values, padding, sentence,
                                   {N, conv_heads, heads, gated, dynamic, norm_first, eps});
      x.resize(N * C), logits.resize(N * V);
      remove_candidates();
      for (bool same_rows = true; same_rows;) {
        const int64_t *limit = numbers<int64_t>(limits), step = limit[0];
        STD_TORCH_CHECK(step >= 0 && step < longest, "beam_search: step ", step, " of a search of ", longest, " steps");
        embed(ends, rows, step, x.data());
        decoder.ancestors = rows.history.data(), decoder.inputs = &inputs;
        run(decoder, x.data());
        if (ends.norm.scale != nullptr) kernels().normalize(ends.norm, x.data(), N, C, x.data());
        compute(ends.output, N, x.data(), logits.data());

        Search search = search_of(N, V, rows.width, count, temperature, limit, pad, eos, unk, unk_penalty);
        search.logits = logits.data(), search.scores = rows.scores.data();
        run(search, pool);
        for (size_t i = 0; i < rows.sentences.size(); ++i) {
          const int64_t first = rows.sentences[i] * count;
          choose(search, pool, rows.width, i, count, numbers<float>(best) + first, numbers<int64_t>(words) + first,
                 numbers<int64_t>(origins) + first);
        }
        search_step(best, words, origins, limits, clock, penalties, newest, scores, order, beams[6], beams[7], beams[8],
                    beams[9], beams[10], beams[11], beams[12], open, beams[14], eos, stepwise);
        if (step >= limit[2]) return;
        Rows next = rows_after(rows, slots, beam, numbers<bool>(open), numbers<int64_t>(newest), numbers<float>(scores),
                               numbers<int64_t>(order));
        same_rows = next.sentences.size() == rows.sentences.size() && next.width == rows.width;
        rows = std::move(next);
      }
    }
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("step_candidates", TORCH_BOX(&step_candidates));
  m.impl("search_step", TORCH_BOX(&search_step));
  m.impl("beam_search", TORCH_BOX(&beam_search));
}

}  // namespace lightconv
