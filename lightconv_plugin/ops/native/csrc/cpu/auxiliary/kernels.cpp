// The choice of the kernels by vector width, and the machine's peak, for benchmarks.
#include <atomic>

#include "cpu/auxiliary/kernels.h"
#include "tensor.h"

namespace lightconv {

const AuxiliaryKernels& auxiliary_kernels() {
#if defined(__x86_64__)
  if (kernels().vector_bits == avx512_kernels.vector_bits) return avx512_auxiliary;
  if (kernels().vector_bits == avx2_kernels.vector_bits) return avx2_auxiliary;
#endif
  return baseline_auxiliary;
}

namespace {

// Floating-point operations done by a loop of fused multiply-adds on all threads: timed, the machine's peak.
double cpu_fma(int64_t iterations) {
  const int64_t threads = torch::stable::get_num_threads();
  std::atomic<double> total{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    float sink = 0;
    double done = 0;
    for (int64_t i = begin; i < end; ++i) done += auxiliary_kernels().fma(iterations, &sink);
    if (sink != 0) total.fetch_add(done);
  });
  return total;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) { m.impl("cpu_fma", TORCH_BOX(&cpu_fma)); }

}  // namespace lightconv
