// The launcher for ctypes: raw addresses in, "" or the error's text out.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/auxiliary/launch.h"
#include "cuda/compiler.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

using namespace lightconv::cuda;

namespace {

thread_local std::string message;

template <class Do> const char* guarded(int device, void* stream, const Do& act) {
  std::vector<std::unique_ptr<unsigned char[]>> kept;
  const Place place{device, stream, [&](size_t bytes) -> void* {
                      kept.emplace_back(new unsigned char[bytes]);
                      // NaN, so that what is read before it is written shows
                      return std::memset(kept.back().get(), 0xff, bytes);
                    }};
  try {
    act(place);
    message.clear();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

}  // namespace

extern "C" {

void set_up(const char* sources, const char* nvrtc, const char* cache, const char* fingerprint) {
  configure({sources, nvrtc, cache, fingerprint});
}

const char* conv_forward(int device, void* stream, const Conv* conv, void* out) {
  return guarded(device, stream, [&](const Place& place) { forward(place, *conv, out); });
}

const char* conv_backward(int device, const Conv* conv, const void* grad, void* grad_x, void* grad_w) {
  return guarded(device, nullptr, [&](const Place& place) { backward(place, *conv, grad, grad_x, grad_w); });
}

const char* run_glu(int device, Type type, const GluArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { glu(place, type, *args); });
}

const char* run_loss(int device, Type type, const LossArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { loss(place, type, *args); });
}

const char* run_loss_backward(int device, Type type, const LossArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { loss_backward(place, type, *args); });
}

const char* run_residual_norm(int device, Type type, NormArgs* args, double p) {
  args->dropout = p > 0.0 ? dropping(p, args->dropout.seed) : DropConnect{};
  return guarded(device, nullptr, [&](const Place& place) { norm(place, type, *args); });
}

const char* run_residual_norm_backward(int device, Type type, NormGradArgs* args, double p) {
  args->dropout = p > 0.0 ? dropping(p, args->dropout.seed) : DropConnect{};
  return guarded(device, nullptr, [&](const Place& place) { norm_backward(place, type, *args); });
}

const char* run_attend(int device, Type type, const AttendArgs* args, long long R) {
  return guarded(device, nullptr, [&](const Place& place) { attend(place, type, R, *args); });
}

const char* run_candidates(int device, Type type, const CandidateArgs* args, int count) {
  return guarded(device, nullptr, [&](const Place& place) { candidates(place, type, count, *args); });
}

const char* run_sums(int device, Type type, const SumsArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { sums(place, type, *args); });
}

const char* run_step(int device, const Case* c, const StepArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { step(place, *c, *args); });
}

const char* run_decide(int device, const DecideArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { decide(place, *args); });
}

const char* run_adam(int device, Type type, const AdamArgs* args) {
  return guarded(device, nullptr, [&](const Place& place) { adam(place, type, *args); });
}

const char* run_gather(bool begin, int* count) {
  return guarded(0, nullptr, [&](const Place&) { *count = gather(begin); });
}

const char* compile_only(const char* source, int capability) {
  return guarded(0, nullptr, [&](const Place&) { compile(source, capability); });
}
}
