// The choice of the CPU kernels by vector width, when the library is first used.
#include "cpu/kernels.h"

#include <atomic>

#include "tensor.h"

namespace lightconv {
namespace {

const Kernels& widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return avx512_kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels;
#endif
  return baseline_kernels;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* table = chosen.load();
  if (table == nullptr) chosen.store(table = &widest());
  return *table;
}

namespace {

// Bits of a vector register that the kernels use; bits > 0 asks for kernels of at most that width, for tests and timing.
int64_t cpu_vector_bits(int64_t bits) {
  if (bits > 0) {
    const Kernels* table = &widest();
#if defined(__x86_64__)
    if (bits < table->vector_bits && bits >= avx2_kernels.vector_bits) table = &avx2_kernels;
    if (bits < avx2_kernels.vector_bits) table = &baseline_kernels;
#endif
    chosen.store(table);
  }
  return kernels().vector_bits;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cpu_vector_bits", TORCH_BOX(&cpu_vector_bits));
}

}  // namespace lightconv
