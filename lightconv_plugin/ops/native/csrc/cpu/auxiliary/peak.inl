// The most multiply-adds a core can do: what the kernels are measured against.

// Returns the floating-point operations done, float32; `sink` keeps them from being left out.
inline double fma_loop(int64_t iterations, float* sink) {
  constexpr int kChains = 12;  // more than a fused multiply-add's latency times the units that do it
  Vec<float> acc[kChains], factor = Vec<float>{} + 0.999f, term = Vec<float>{} + 1e-3f;
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) acc[i] = Vec<float>{} + static_cast<float>(i);
  for (int64_t n = 0; n < iterations; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * factor + term;
  for (int i = 0; i < kChains; ++i) *sink += acc[i][0];
  return 2.0 * kChains * kLanes<float> * static_cast<double>(iterations);
}
