// The kernels of decoding on all threads; and what attention asks of its state.
#pragma once

#include <optional>

#include "auxiliary_checks.h"
#include "cpu/auxiliary/kernels.h"
#include "cpu/auxiliary/product.h"
#include "cpu/step.h"

namespace lightconv {

inline void run(const Attention& a) {
  on_threads(a.N, kWorth / (2 * a.S * a.C + 1), attend_scratch(a),
             [&](void* scratch, int64_t begin, int64_t end) { auxiliary_kernels().attend(a, scratch, begin, end); });
}

inline void run(const Search& search) {
  on_threads(search.N, kWorth / (8 * search.V), best_scratch(search),
             [&](void* scratch, int64_t begin, int64_t end) { auxiliary_kernels().best(search, scratch, begin, end); });
}

inline void run(const Linear& l) {
  if (l.packed != nullptr) return run(Product{l.rows, l.out, l.in, {l.x, l.in, 1}, nullptr, l.packed, l.bias, l.y});
  on_threads(l.out, std::max<int64_t>(4, kWorth / 2 / (l.in + 1)), 0,
             [&](void*, int64_t begin, int64_t end) { auxiliary_kernels().linear(l, begin, end); });
}

// Attention of N queries of C channels to the sentences of a state; query and out are left to the caller.
inline Attention attention_to(const Tensor& keys, const Tensor& values, const std::optional<Tensor>& padding,
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

}  // namespace lightconv
