// Tensors on a GPU: scratch memory, the current stream, types and devices.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checks.h"
#include "cuda/args.h"
#include "cuda/kernels.h"
#include "tensor.h"

namespace lightconv::cuda {

#if defined(LIGHTCONV_ON_CPU)  // tests/ops/cuda_shim/emulated.cpp
#define LIGHTCONV_GPU CPU
int device_of(const Tensor& x);
void* current_stream(int device);
#else
#define LIGHTCONV_GPU CUDA
inline int device_of(const Tensor& x) { return x.get_device_index(); }

// Returns torch's current stream. torch's function is looked up at run time: a CPU build of torch does not have it.
inline void* current_stream(int device) {
  using Function = int32_t (*)(int32_t, void**);
  static const Function function = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
    return reinterpret_cast<Function>(symbol);
  }();
  STD_TORCH_CHECK(function != nullptr, "lightconv: this torch has no aoti_torch_get_current_cuda_stream; "
                                       "expected a CUDA build of torch 2.10 or later");
  void* stream = nullptr;
  STD_TORCH_CHECK(function(device, &stream) == 0, "lightconv: torch did not return the current CUDA stream");
  return stream;
}
#endif

// Scratch memory in torch tensors, so that torch's allocator manages it, in captured graphs too. It lives as long as
// this object.
class Memory {
 public:
  explicit Memory(const Tensor& like) : like_(like) {}
  Place place() {
    const int device = device_of(like_);
    return {device, current_stream(device), [this](size_t bytes) {
              kept_.push_back(torch::stable::new_empty(like_, {static_cast<int64_t>(bytes)}, ScalarType::Byte));
              return kept_.back().mutable_data_ptr();
            }};
  }

 private:
  const Tensor& like_;
  std::vector<Tensor> kept_;
};

inline Type type_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Type::f32;
    case ScalarType::Double: return Type::f64;
    case ScalarType::Half: return Type::f16;
    case ScalarType::BFloat16: return Type::bf16;
    default: STD_TORCH_CHECK(false, "lightconv: expected float32, float16, bfloat16 or float64 on a GPU");
  }
}

inline void check_same(const Tensor& x, const Tensor& other, const char* name) {
  STD_TORCH_CHECK(other.is_cuda() == x.is_cuda() && other.get_device_index() == x.get_device_index(), "lightconv: ", name,
                  " is not on x's device");
}

// Arguments for dropping numbers with probability p, in float32 as in the CPU kernels. seed: in device memory.
inline DropConnect dropping(float given, const long long* seed) {
  const double p = given;
  return {seed, static_cast<unsigned int>(std::min(std::llround(p * 4294967296.0), 4294967295ll)), 1.0 / (1.0 - p)};
}

}  // namespace lightconv::cuda
