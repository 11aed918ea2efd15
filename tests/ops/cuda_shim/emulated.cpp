// Replaces torch's CUDA device and stream when the CUDA operators are compiled for CPU tensors, with the flags EMULATED
// of cuda_on_cpu.py, as torch.ops.lightconv_emulated.
#include "cuda/compiler.h"
#include "cuda/memory.h"

namespace lightconv::cuda {

static int device = 90;
static void* stream = nullptr;

int device_of(const Tensor&) { return device; }
void* current_stream(int) { return stream; }

}  // namespace lightconv::cuda

extern "C" {

// Sets the emulated GPU (see `contexts` in libcuda.cpp) and the stream of the calls that follow.
void emulate(int device, void* stream) { lightconv::cuda::device = device, lightconv::cuda::stream = stream; }

// Compiles a source for a compute capability. Returns "" or the error message.
const char* compile_only(const char* source, int capability) {
  static std::string message;
  message.clear();
  try {
    lightconv::cuda::compile(source, capability);
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}
}
