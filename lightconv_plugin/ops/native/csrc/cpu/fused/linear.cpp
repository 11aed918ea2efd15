// Linear layers, y = x weight^T + bias, of float32 tensors: for few rows; with packed weights in float32, bfloat16 or
// 8-bit integers; and in bfloat16 with gradients.
#include "cpu/fused/linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/fused/bf16.h"
#include "cpu/fused/int8.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lightconv {
namespace {

// ---- The processor's units ----

#if defined(__x86_64__)
// The registers of CPUID's leaf 7; 0 if the processor does not have the leaf.
struct Features {
  unsigned b = 0, c = 0, d = 0, a1 = 0;  // b, c, d of subleaf 0; a1 is a of subleaf 1

  Features() {
    unsigned a = 0, other = 0;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    __get_cpuid_count(7, 1, &a1, &other, &other, &other);
  }
};

bool may_use_tiles(const Features& has) {
  constexpr long kRequest = 0x1023, kTileData = 18;  // Linux ends a process that uses tiles without this request
  return (has.d >> 24 & 1) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Bf16Units best_bf16_units() {
  const Features has;
  if (!(has.a1 >> 5 & 1)) return Bf16Units::none;
  return (has.d >> 22 & 1) && may_use_tiles(has) ? Bf16Units::amx : Bf16Units::avx512;
}

constexpr int kInt8Units = 6;

// For each of Int8Units, returns true if the processor has it.
const std::array<bool, kInt8Units>& all_int8_units() {
  static const std::array<bool, kInt8Units> units = [] {
    const Features has;
    const bool avx512_vnni = has.c >> 11 & 1;
    return std::array<bool, kInt8Units>{true, true, true, static_cast<bool>(has.a1 >> 4 & 1), avx512_vnni,
                                        avx512_vnni && (has.d >> 25 & 1) && may_use_tiles(has)};
  }();
  return units;
}
#endif

std::atomic<int> allowed_bf16{static_cast<int>(Bf16Units::amx)}, allowed_int8{static_cast<int>(Int8Units::amx)};

Bf16Units bf16_units() {
#if defined(__x86_64__)
  static const Bf16Units best = best_bf16_units();
  if (kernels().vector_bits < 512) return Bf16Units::none;  // AVX-512 is missing, disabled or not allowed
  return static_cast<Bf16Units>(std::min(static_cast<int>(best), allowed_bf16.load()));
#else
  return Bf16Units::none;
#endif
}

Int8Units int8_units() {
#if defined(__x86_64__)
  const std::array<bool, kInt8Units>& has = all_int8_units();
  // vectors may be at most as wide as those of the other kernels
  constexpr int kBits[kInt8Units] = {0, 256, 512, 256, 512, 512};
  const int bits = kernels().vector_bits;
  for (int number = std::min(kInt8Units - 1, allowed_int8.load()); number > 0; --number)
    if (has[number] && kBits[number] <= bits) return static_cast<Int8Units>(number);
#endif
  return Int8Units::none;
}

const Int8Kernels& int8_kernels(int64_t rows) {
#if defined(__x86_64__)
  const Int8Units units = int8_units();
  // for the beam of one sentence, reading the weight dominates the time; vectors of 256 bits read it fastest
  constexpr int64_t kFewRows = 4;
  if (rows <= kFewRows && units > Int8Units::avx_vnni && all_int8_units()[static_cast<int>(Int8Units::avx_vnni)])
    return avx_vnni_int8;
  switch (units) {
    case Int8Units::avx2: return avx2_int8;
    case Int8Units::avx512: return avx512_int8;
    case Int8Units::avx_vnni: return avx_vnni_int8;
    case Int8Units::avx512_vnni: return avx512_vnni_int8;
    case Int8Units::amx: return amx_int8;
    case Int8Units::none: break;
  }
#endif
  STD_TORCH_CHECK(false, "packed_linear: the processor has no units for products of 8-bit integers");
}

// Returns the units for products in bfloat16: 0 none, 1 AVX512-BF16, 2 AMX. `most` >= 0 first limits the choice.
int64_t cpu_bf16_units(int64_t most) {
  if (most >= 0) allowed_bf16 = static_cast<int>(std::min<int64_t>(most, 2));
  return static_cast<int64_t>(bf16_units());
}

// The same for products of 8-bit integers: 0 none, 1 AVX2, 2 AVX-512, 3 AVX-VNNI, 4 AVX512-VNNI, 5 AMX.
int64_t cpu_int8_units(int64_t most) {
  if (most >= 0) allowed_int8 = static_cast<int>(std::min<int64_t>(most, 5));
  return static_cast<int64_t>(int8_units());
}

Tensor empty(const Tensor& like, std::vector<int64_t> sizes, ScalarType type = ScalarType::Float) {
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()), type);
}

Tensor empty_mapped(const Tensor& x, int64_t out) {  // (..., out) for x (..., in)
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = out;
  return empty(x, sizes);
}

float* numbers(Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

// Returns `count` numbers in `place`, starting at a multiple of 64 bytes. The memory is kept from call to call.
template <class Number>
Number* kept(std::vector<Number>& place, int64_t count) {
  constexpr int64_t kMore = 64 / sizeof(Number);
  if (static_cast<int64_t>(place.size()) < count + kMore) place.resize(count + kMore);
  return reinterpret_cast<Number*>((reinterpret_cast<uintptr_t>(place.data()) + 63) / 64 * 64);
}

// Calls pack(begin, end) on threads, for ranges of [0, count); each index stands for `size` numbers to pack.
template <class Pack>
void in_parts(int64_t count, int64_t size, const Pack& pack) {
  in_ranges(count, 1 + 65536 / (size + 1), pack);
}

// ---- Products in bfloat16 ----

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
  // fewer than 32 rows take as long as 32: the time is that of reading B
  const int64_t across = by_rows ? product.N : std::max<int64_t>(product.M, 32);
  const int64_t worth = 1 + 4'000'000 / (32 * product.K * across + 1);
  in_ranges(by_rows ? rows : (columns + 1) / 2, worth, [&](int64_t begin, int64_t end) {
    thread_local std::vector<uint16_t> place;
    uint16_t* scratch = kept(place, kProductScratch);
    if (by_rows)
      bf16_product(product, units, scratch, 32 * begin, std::min(32 * end, product.M), 0, columns);
    else
      bf16_product(product, units, scratch, 0, product.M, 2 * begin, std::min(2 * end, columns));
  });
#endif
}

// Packs B, and computes the product.
void multiply(Product product, const Matrix& b) {
  thread_local std::vector<uint16_t> place;
  uint16_t* packed = kept(place, packed_size(product.N, product.K));
  pack(b, product.N, product.K, packed);
  product.b_packed = packed;
  run(product);
}

// Computes the weight's gradient (out, in) = y^T x from y (rows, out) and x (rows, in), and sums (out), the sum of y
// over the rows, unless that is null.
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
  multiply({out, in, rows, {}, packed, nullptr, nullptr, false, gradient}, {x, in, 1});
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

Tensor bf16_linear(const Tensor& x_any, const Tensor& weight, std::optional<Tensor> bias) {
  const Tensor x = as_contiguous(x_any);
  check_linear(x, weight);
  const int64_t in = weight.size(1), out = weight.size(0), rows = in == 0 ? 0 : x.numel() / in;
  STD_TORCH_CHECK(!bias.has_value() || bias->numel() == out, "bf16_linear: expected bias (out,)");
  Tensor y = empty_mapped(x, out);
  Product product{rows, out, in, {float32(x), in, 1}, nullptr, nullptr, nullptr, false, numbers(y)};
  if (bias.has_value()) product.bias = float32(*bias);
  multiply(product, {float32(weight), 1, in});
  return y;
}

// Returns the gradients of x (..., in), weight (out, in) and bias (out). One that is not needed has the shape (0).
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
    multiply({rows, in, out, {y, out, 1}, nullptr, nullptr, nullptr, false, numbers(of_x)}, {float32(weight), in, 1});
  STD_TORCH_CHECK(need_weight || !need_bias, "bf16_linear: the gradient of the bias comes with that of the weight");
  if (need_weight)
    multiply_transposed(y, float32(x), rows, out, in, numbers(of_weight), need_bias ? numbers(of_bias) : nullptr);
  return {of_x, of_weight, of_bias};
}

// ---- Packed weights ----

using Type = PackedWeight::Type;

Type type_named(const std::string& precision) {
  if (precision == "fp32") return Type::f32;
  if (precision == "bf16") return Type::bf16;
  STD_TORCH_CHECK(precision == "int8", "pack_weight: expected the precision fp32, bf16 or int8; got ", precision);
  return Type::int8;
}

// Packs 16 rows of a weight, of which `count` exist, as the columns of a block.
void pack_float32(const float* rows, int64_t in, int64_t count, float* block) {
  if (count < 16) std::fill(block, block + 16 * in, 0.0f);
  for (int64_t c = 0; c < count; ++c)
    for (int64_t i = 0; i < in; ++i) block[16 * i + c] = rows[c * in + i];
}

void pack_int8(const float* rows, int64_t in, int64_t count, int8_t* block) {
  std::fill(block, block + int8_block(in), int8_t{0});
  auto* scale = reinterpret_cast<float*>(block + 16 * int8_depth(in));
  auto* total = reinterpret_cast<int32_t*>(scale + 16);
  for (int64_t c = 0; c < count; ++c, rows += in) {
    float largest = 0, finite = 0;
    for (int64_t i = 0; i < in; ++i) largest = std::max(largest, std::abs(rows[i])), finite += rows[i] - rows[i];
    const bool usable = finite == 0 && largest >= 1e-35f;
    const float per = usable ? 127 / largest : 0;
    scale[c] = finite == 0 ? (usable ? largest / 127 : 0) : std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; usable && i < in; ++i) {
      const auto integer = static_cast<int8_t>(std::lrint(rows[i] * per));
      block[i / 4 * 64 + 4 * c + i % 4] = integer;
      total[c] += integer;
    }
  }
}

Tensor pack_weight(const Tensor& weight, std::string precision) {
  STD_TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0, "pack_weight: expected weight (out, in)");
  const Type type = type_named(precision);
  const int64_t out = weight.size(0), in = weight.size(1), blocks = column_blocks(out);
  const float* rows = float32(weight);
  const auto each_block = [&](const auto& pack_block) {
    in_parts(blocks, 16 * in, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) pack_block(rows + 16 * b * in, std::min<int64_t>(16, out - 16 * b), b);
    });
  };
  if (type == Type::f32) {
    Tensor packed = empty(weight, {blocks, in, 16});
    float* to = numbers(packed);
    each_block([&](const float* from, int64_t count, int64_t b) { pack_float32(from, in, count, to + 16 * b * in); });
    return packed;
  }
  if (type == Type::int8) {
    STD_TORCH_CHECK(in <= kInt8Depth, "pack_weight: int8 takes at most ", kInt8Depth, " inputs; got ", in);
    Tensor packed = empty(weight, {blocks, int8_block(in)}, ScalarType::Char);
    auto* to = static_cast<int8_t*>(packed.mutable_data_ptr());
    each_block([&](const float* from, int64_t count, int64_t b) {
      pack_int8(from, in, count, to + b * int8_block(in));
    });
    return packed;
  }
  STD_TORCH_CHECK(bf16_units() != Bf16Units::none, "pack_weight: the processor has no units for bfloat16");
  Tensor packed = empty(weight, {blocks, tiles(in), 16, 32}, ScalarType::BFloat16);
  pack({rows, 1, in}, out, in, static_cast<uint16_t*>(packed.mutable_data_ptr()));
  return packed;
}

void run_int8(const Linear& l) {
  const Int8Kernels& chosen = int8_kernels(l.rows);
  thread_local std::vector<uint8_t> integers;
  thread_local std::vector<float> scale;
  thread_local std::vector<int32_t> zero;
  scale.resize(l.rows), zero.resize(l.rows);
  const RoundedRows rounded{kept(integers, 32 * row_blocks(l.rows) * int8_depth(l.in)), scale.data(), zero.data()};
  on_threads(l.rows, kWorth / (4 * l.in + 1), 0,
             [&](void*, int64_t begin, int64_t end) { chosen.round(l.x, l.in, rounded, begin, end); });
  const Int8Product product{l.rows, l.out, l.in, rounded, static_cast<const int8_t*>(l.packed.data),
                            l.bias, l.relu, l.y};
  on_threads((column_blocks(l.out) + 1) / 2, kWorth / (8 * std::max<int64_t>(l.rows, 4) * l.in + 1), 0,
             [&](void*, int64_t begin, int64_t end) { chosen.multiply(product, begin, end); });
}

Tensor packed_linear(const Tensor& x_any, const Tensor& packed, std::optional<Tensor> bias, int64_t out, bool relu) {
  const Tensor x = as_contiguous(x_any);
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(-1) > 0 && (!bias.has_value() || bias->numel() == out),
                  "packed_linear: expected x (..., in), and bias (out,) where there is one");
  Linear linear{};
  linear.in = x.size(-1), linear.out = out, linear.rows = x.numel() / linear.in;
  linear.x = float32(x), linear.packed = packed_weight(packed, out, linear.in), linear.relu = relu;
  if (bias.has_value()) linear.bias = float32(*bias);
  Tensor y = empty_mapped(x, out);
  linear.y = numbers(y);
  run(linear);
  return y;
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

PackedWeight packed_weight(const Tensor& packed, int64_t out, int64_t in) {
  const bool right_out = out > 0 && packed.dim() > 0 && (out - 1) / 16 + 1 == packed.size(0);
  const auto is = [&](ScalarType type, int64_t dim, int64_t place, int64_t size) {
    return right_out && packed.scalar_type() == type && packed.dim() == dim && packed.size(place) == size &&
           packed.numel() == packed.size(0) * size * (dim == 2 ? 1 : dim == 3 ? 16 : 512) && packed.is_contiguous();
  };
  const void* data = packed.const_data_ptr();
  if (is(ScalarType::Float, 3, 1, in)) return {Type::f32, data};
  if (is(ScalarType::BFloat16, 4, 1, tiles(in))) return {Type::bf16, data};
  STD_TORCH_CHECK(is(ScalarType::Char, 2, 1, int8_block(in)), "packed_linear: the packed weight is not that of a weight (",
                  out, ", ", in, ")");
  return {Type::int8, data};
}

void run(const Linear& l) {
  if (l.rows == 0 || l.out == 0) return;
  switch (l.packed.type) {
    case Type::none:
      return on_threads(l.out, std::max<int64_t>(4, kWorth / 2 / (l.in + 1)), 0,
                        [&](void*, int64_t begin, int64_t end) { kernels().linear(l, begin, end); });
    case Type::f32:
      return on_threads((column_blocks(l.out) + 1) / 2, kWorth / (32 * std::max<int64_t>(l.rows, 4) * l.in + 1), 0,
                        [&](void*, int64_t begin, int64_t end) { kernels().linear_packed(l, begin, end); });
    case Type::bf16:
      return run(Product{l.rows, l.out, l.in, {l.x, l.in, 1}, nullptr, static_cast<const uint16_t*>(l.packed.data),
                         l.bias, l.relu, l.y});
    case Type::int8: return run_int8(l);
  }
}

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) {
  m.impl("few_rows_linear", TORCH_BOX(&few_rows_linear));
  m.impl("pack_weight", TORCH_BOX(&pack_weight));
  m.impl("packed_linear", TORCH_BOX(&packed_linear));
  m.impl("bf16_linear", TORCH_BOX(&bf16_linear));
  m.impl("bf16_linear_backward", TORCH_BOX(&bf16_linear_backward));
}
STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cpu_bf16_units", TORCH_BOX(&cpu_bf16_units));
  m.impl("cpu_int8_units", TORCH_BOX(&cpu_int8_units));
}

}  // namespace lightconv
