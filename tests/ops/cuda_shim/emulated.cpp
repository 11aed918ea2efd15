// What the CUDA side asks of torch, where its operators take CPU tensors: as torch.ops.lightconv_emulated, chosen by flags.
#include "cuda/compiler.h"
#include "cuda/memory.h"

namespace lightconv::cuda {

static int device = 90;
static void* stream = nullptr;

int device_of(const Tensor&) { return device; }
void* current_stream(int) { return stream; }

}  // namespace lightconv::cuda

extern "C" {

// The pretended GPU, whose number is its capability, and the stream of what follows.
void emulate(int device, void* stream) { lightconv::cuda::device = device, lightconv::cuda::stream = stream; }

// Compiles a source for a capability; "" or the error.
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
