// One decoding step of a whole decoder block (section 5.1), for rows so few, or products so fast, that what lies between
// the products would take longer than they do.
#include <algorithm>
#include <optional>
#include <vector>

#include "checks.h"
#include "cpu/auxiliary/run.h"

namespace lightconv {
namespace {

// The block's parameters, one after the other in the order that library.cpp has.
class Parameters {
 public:
  Parameters(const std::vector<Tensor>& all, const std::vector<Tensor>& packed) : all_(all), packed_(packed) {}

  const Tensor& next() {
    STD_TORCH_CHECK(used_ < all_.size(), "decoder_block: there are too few parameters");
    const Tensor& found = all_[used_++];
    STD_TORCH_CHECK(found.scalar_type() == ScalarType::Float && found.is_contiguous(),
                    "decoder_block: expected contiguous parameters in float32");
    return found;
  }

  const float* vector(int64_t size) {
    const Tensor& found = next();
    STD_TORCH_CHECK(found.dim() == 1 && found.size(0) == size, "decoder_block: a bias or norm has another size");
    return static_cast<const float*>(found.const_data_ptr());
  }

  Linear linear(int64_t in, bool bias = true) {
    const Tensor& weight = next();
    STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == in, "decoder_block: a weight is not (out, in)");
    Linear found{};
    found.in = in, found.out = weight.size(0);
    found.weight = static_cast<const float*>(weight.const_data_ptr());
    if (!packed_.empty()) {
      STD_TORCH_CHECK(maps_ < packed_.size(), "decoder_block: there are too few packed weights");
      check_packed(packed_[maps_], found.out, in);
      found.packed = static_cast<const uint16_t*>(packed_[maps_++].const_data_ptr());
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
  const Tensor x = torch::stable::contiguous(x_any);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.scalar_type() == ScalarType::Float,
                  "decoder_block: expected x (1, N, C), float32");
  STD_TORCH_CHECK(ring.dim() == 3, "decoder_block: expected ring (K, M, C)");
  const int64_t N = x.size(1), C = x.size(2), K = ring.size(0);
  Parameters next(parameters, packed);

  const Linear in = next.linear(C);
  STD_TORCH_CHECK(!gated || in.out % 2 == 0, "decoder_block: a gated map has an odd width");
  const int64_t inner = gated ? in.out / 2 : in.out;
  Step step{};
  step.N = N, step.C = inner, step.K = K, step.type = Scalar::f32, step.dynamic = dynamic, step.softmax = true;
  Linear kernels{};
  if (dynamic) {
    kernels = next.linear(inner, /*bias=*/false);
    step.H = kernels.out / K;
    STD_TORCH_CHECK(step.H * K == kernels.out, "decoder_block: the kernels' width is not that of the ring");
  } else {
    const Tensor& weight = next.next();
    STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == K, "decoder_block: expected a kernel (H, K)");
    step.H = weight.size(0);
    step.weight = weight.const_data_ptr();
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
  const int64_t most = std::max({C, in.out, kernels.out, query.out, wide.out});
  scratch.resize(3 * N * most);
  float *input = scratch.data(), *a = input + N * most, *b = a + N * most;
  Tensor result = torch::stable::new_empty(x, x.sizes());
  float* sum = static_cast<float*>(result.mutable_data_ptr());
  const float* given = static_cast<const float*>(x.const_data_ptr());
  std::copy(given, given + N * C, sum);
  const AuxiliaryKernels& chosen = auxiliary_kernels();
  const auto begin = [&](const LayerNorm& norm) -> const float* {  // what a part reads
    if (!norm_first) return sum;
    on_rows(N, C, [&](int64_t n, int64_t rows) { chosen.normalize(norm, sum + n * C, rows, C, input + n * C); });
    return input;
  };
  const auto end = [&](const LayerNorm& norm, const float* y) {
    on_rows(N, C, [&](int64_t n, int64_t rows) {
      chosen.add(y + n * C, rows * C, sum + n * C);
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
    map(kernels, N, a, input);  // what it held has been read
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
  on_rows(N, wide.out, [&](int64_t n, int64_t rows) { chosen.relu(a + n * wide.out, rows * wide.out); });
  map(narrow, N, a, b);
  end(last, b);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CPU, m) { m.impl("decoder_block", TORCH_BOX(&decoder_block)); }

}  // namespace lightconv
