// Linear maps, y = x weight^T + bias, of few rows and in bfloat16, with gradients. Tensors are float32; products in
// bfloat16 round their operands.
#include "cpu/fused/linear.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/fused/bf16.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lightconv {
namespace {

Bf16Units units_of_processor() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return Bf16Units::none;
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
  constexpr long kRequest = 0x1023, kTileData = 18;  // of Linux: without it the first use of a tile ends the process
  if (tiles && syscall(SYS_arch_prctl, kRequest, kTileData) == 0) return Bf16Units::amx;
  return Bf16Units::avx512;
#else
  return Bf16Units::none;
#endif
}

std::atomic<int> allowed{static_cast<int>(Bf16Units::amx)};

Bf16Units bf16_units() {
  static const Bf16Units found = units_of_processor();
  if (kernels().vector_bits < 512) return Bf16Units::none;  // what AVX-512 the operating system lets be used
  return static_cast<Bf16Units>(std::min(static_cast<int>(found), allowed.load()));
}

// The units of bfloat16 that products use: 0 none, 1 AVX512-BF16, 2 AMX. `most` >= 0 allows no better ones than that.
int64_t cpu_bf16_units(int64_t most) {
  if (most >= 0) allowed = static_cast<int>(most);
  return static_cast<int64_t>(bf16_units());
}

Tensor empty(const Tensor& like, std::vector<int64_t> sizes, ScalarType type = ScalarType::Float) {
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()), type);
}

Tensor empty_mapped(const Tensor& x, int64_t out) {  // (..., out) of x (..., in)
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = out;
  return empty(x, sizes);
}

float* numbers(Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

// A place in memory kept from call to call, beginning at a multiple of 64 bytes.
uint16_t* kept(std::vector<uint16_t>& place, int64_t count) {
  if (static_cast<int64_t>(place.size()) < count + 32) place.resize(count + 32);
  return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(place.data()) + 63) / 64 * 64);
}

// Calls pack(begin, end) for parts of `count`, each of `size` numbers that are packed.
template <class Pack>
void in_parts(int64_t count, int64_t size, const Pack& pack) {
  torch::stable::parallel_for(0, count, 1 + 65536 / (size + 1), pack);
}

void pack(const Matrix& b, int64_t N, int64_t K, uint16_t* packed) {
#if defined(__x86_64__)
  if (b.row == 1)
    in_parts(column_blocks(N), 16 * K,
             [&](int64_t begin, int64_t end) { bf16_pack_columns(b, N, K, packed, begin, end); });
  else
    in_parts(tiles(K), 32 * N, [&](int64_t begin, int64_t end) { bf16_pack_rows(b, N, K, packed, begin, end); });
#endif
}

void run(const Product& product) {
#if defined(__x86_64__)
  const Bf16Units units = bf16_units();
  const int64_t rows = row_blocks(product.M), columns = column_blocks(product.N);
  const bool by_rows = rows >= 2 * torch::stable::get_num_threads();
  // few rows take as long as 32: their time is that of reading B
  const int64_t across = by_rows ? product.N : std::max<int64_t>(product.M, 32);
  const int64_t worth = 1 + 4'000'000 / (32 * product.K * across + 1);
  torch::stable::parallel_for(0, by_rows ? rows : (columns + 1) / 2, worth, [&](int64_t begin, int64_t end) {
    thread_local std::vector<uint16_t> place;
    uint16_t* scratch = kept(place, kProductScratch);
    if (by_rows)
      bf16_product(product, units, scratch, 32 * begin, std::min(32 * end, product.M), 0, columns);
    else
      bf16_product(product, units, scratch, 0, product.M, 2 * begin, std::min(2 * end, columns));
  });
#endif
}

// C = A B, of which B is packed first.
void multiply(Product product, const Matrix& b) {
  thread_local std::vector<uint16_t> place;
  uint16_t* packed = kept(place, packed_size(product.N, product.K));
  pack(b, product.N, product.K, packed);
  product.b_packed = packed;
  run(product);
}

// The weight's gradient (out, in) = y^T x, of y (rows, out) and x (rows, in); and y's sums (out), or null.
void multiply_transposed(const float* y, const float* x, int64_t rows, int64_t out, int64_t in, float* gradient,
                         float* sums) {
#if defined(__x86_64__)
  thread_local std::vector<uint16_t> place;
  thread_local std::vector<float> parts;
  uint16_t* packed = kept(place, row_blocks(out) * tiles(rows) * 1024);
  parts.resize(tiles(rows) * out);
  float* part = parts.data();
  in_parts(tiles(rows), 32 * out, [&](int64_t begin, int64_t end) {
    bf16_pack_left({y, 1, out}, out, rows, packed, part, begin, end);
  });
  multiply({out, in, rows, {}, packed, nullptr, nullptr, gradient}, {x, in, 1});
  if (sums == nullptr) return;
  std::fill(sums, sums + out, 0.0f);
  for (int64_t k = 0; k < tiles(rows); ++k)
    for (int64_t i = 0; i < out; ++i) sums[i] += part[k * out + i];
#endif
}

void check_linear(const Tensor& x, const Tensor& weight) {
  STD_TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                  "bf16_linear: expected x (..., in) and weight (out, in)");
  STD_TORCH_CHECK(bf16_units() != Bf16Units::none, "bf16_linear: the processor has no units for bfloat16");
}

Tensor bf16_pack_weight(const Tensor& weight) {
  STD_TORCH_CHECK(weight.dim() == 2, "bf16_pack: expected weight (out, in)");
  STD_TORCH_CHECK(bf16_units() != Bf16Units::none, "bf16_pack: the processor has no units for bfloat16");
  const int64_t out = weight.size(0), in = weight.size(1);
  Tensor packed = empty(weight, {column_blocks(out), (in + 31) / 32, 16, 32}, ScalarType::BFloat16);
  pack({float32(weight), 1, in}, out, in, static_cast<uint16_t*>(packed.mutable_data_ptr()));
  return packed;
}

Tensor bf16_linear(const Tensor& x_any, const Tensor& weight, std::optional<Tensor> bias,
                   std::optional<Tensor> packed) {
  const Tensor x = as_contiguous(x_any);
  check_linear(x, weight);
  const int64_t in = weight.size(1), out = weight.size(0), rows = in == 0 ? 0 : x.numel() / in;
  STD_TORCH_CHECK(!bias.has_value() || bias->numel() == out, "bf16_linear: expected bias (out,)");
  Tensor y = empty_mapped(x, out);
  Product product{rows, out, in, {float32(x), in, 1}, nullptr, nullptr, nullptr, numbers(y)};
  if (bias.has_value()) product.bias = float32(*bias);
  if (!packed.has_value()) {
    multiply(product, {float32(weight), 1, in});
    return y;
  }
  product.b_packed = packed_weight(*packed, out, in);
  run(product);
  return y;
}

// Of x (rows, in) or none, weight (out, in), bias (out): none is (0).
std::tuple<Tensor, Tensor, Tensor> bf16_linear_backward(const Tensor& grad_any, const Tensor& x_any,
                                                        const Tensor& weight, bool need_x, bool need_weight,
                                                        bool need_bias) {
  const Tensor grad = as_contiguous(grad_any), x = as_contiguous(x_any);
  check_linear(x, weight);
  const int64_t in = weight.size(1), out = weight.size(0), rows = in == 0 ? 0 : x.numel() / in;
  STD_TORCH_CHECK(grad.numel() == rows * out, "bf16_linear: the gradient is not (..., out)");
  const std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  Tensor of_x = empty(x, need_x ? sizes : std::vector<int64_t>{0});
  Tensor of_weight = empty(x, need_weight ? std::vector<int64_t>{out, in} : std::vector<int64_t>{0});
  Tensor of_bias = empty(x, {need_bias ? out : 0});
  const float* y = float32(grad);
  if (need_x)
    multiply({rows, in, out, {y, out, 1}, nullptr, nullptr, nullptr, numbers(of_x)}, {float32(weight), in, 1});
  STD_TORCH_CHECK(need_weight || !need_bias, "bf16_linear: the gradient of the bias comes with that of the weight");
  if (need_weight)
    multiply_transposed(y, float32(x), rows, out, in, numbers(of_weight), need_bias ? numbers(of_bias) : nullptr);
  return {of_x, of_weight, of_bias};
}

Tensor few_rows_linear(const Tensor& x_any, const Tensor& weight, std::optional<Tensor> bias) {
  const Tensor x = as_contiguous(x_any);
  STD_TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
                      (!bias.has_value() || bias->numel() == weight.size(0)),
                  "few_rows_linear: expected x (..., in), weight (out, in) and bias (out,)");
  Tensor out = empty_mapped(x, weight.size(0));
  Linear linear{};
  linear.in = weight.size(1), linear.out = weight.size(0);
  linear.rows = linear.in == 0 ? 0 : x.numel() / linear.in;
  linear.x = float32(x), linear.weight = float32(weight), linear.y = numbers(out);
  if (bias.has_value()) linear.bias = float32(*bias);
  run(linear);
  return out;
}

}  // namespace

const float* float32(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float && x.is_contiguous(), "lightconv: expected contiguous float32");
  return static_cast<const float*>(x.const_data_ptr());
}

const uint16_t* packed_weight(const Tensor& packed, int64_t out, int64_t in) {
  STD_TORCH_CHECK(packed.scalar_type() == ScalarType::BFloat16 && packed.is_contiguous() &&
                      packed.numel() == packed_size(out, in),
                  "bf16_linear: the packed weight is not that of a weight of this size");
  return static_cast<const uint16_t*>(packed.const_data_ptr());
}

void run(const Linear& l) {
  if (l.packed != nullptr) return run(Product{l.rows, l.out, l.in, {l.x, l.in, 1}, nullptr, l.packed, l.bias, l.y});
  on_threads(l.out, std::max<int64_t>(4, kWorth / 2 / (l.in + 1)), 0,
             [&](void*, int64_t begin, int64_t end) { kernels().linear(l, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("few_rows_linear", TORCH_BOX(&few_rows_linear));
  m.impl("bf16_pack", TORCH_BOX(&bf16_pack_weight));
  m.impl("bf16_linear", TORCH_BOX(&bf16_linear));
  m.impl("bf16_linear_backward", TORCH_BOX(&bf16_linear_backward));
}
STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cpu_bf16_units", TORCH_BOX(&cpu_bf16_units));
}

}  // namespace lightconv
