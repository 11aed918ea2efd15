// Chooses the CPU kernels by vector width, when the library is first used.
#include "cpu/kernels.h"

#include <atomic>

#include "tensor.h"

namespace lightconv {
namespace {

// Returns the kernels of the widest vectors that the machine has, of at most `bits` bits.
const Kernels* widest(int64_t bits) {
#if defined(__x86_64__)
  if (bits >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return &avx512_kernels;
  if (bits >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2_kernels;
#endif
  return &baseline_kernels;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> table{widest(512)};
  return table;
}

// Returns the bits of the kernels' vectors. bits > 0 first limits them to that width, for tests and timing.
int64_t cpu_vector_bits(int64_t bits) {
  if (bits > 0) chosen() = widest(bits);
  return kernels().vector_bits;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(); }

STABLE_TORCH_LIBRARY_IMPL(lightconv, CompositeExplicitAutograd, m) {
  m.impl("cpu_vector_bits", TORCH_BOX(&cpu_vector_bits));
}

}  // namespace lightconv
