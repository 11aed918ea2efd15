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

struct FlatConv {
  long long T, B, H, R, K, padding_l, type, dynamic, softmax;
  double dropconnect;
  const long long* seed;
  const void* x;
  const void* logits;
};

static Conv unpack(const FlatConv& c) {
  return {c.T, c.B, c.H, c.R, c.K, c.padding_l, static_cast<Type>(c.type), c.dynamic != 0, c.softmax != 0, c.dropconnect,
          c.seed, c.x, c.logits};
}

void set_up(const char* sources, const char* includes, const char* nvrtc, const char* cache, const char* fingerprint) {
  configure({sources, includes, nvrtc, cache, fingerprint});
}

const char* conv_forward(int device, void* stream, const FlatConv* conv, void* out) {
  return guarded(device, stream, [&](const Place& place) { forward(place, unpack(*conv), out); });
}

const char* conv_backward(int device, void* stream, const FlatConv* conv, const void* grad, void* grad_x, void* grad_w) {
  return guarded(device, stream, [&](const Place& place) { backward(place, unpack(*conv), grad, grad_x, grad_w); });
}

const char* run_glu(int device, int type, long long T, long long B, long long C, const void* grad, const void* x, const bool* mask,
                    void* out) {
  return guarded(device, nullptr, [&](const Place& place) {
    if (grad == nullptr) glu(place, static_cast<Type>(type), T, B, C, x, mask, out);
    else glu_backward(place, static_cast<Type>(type), T, B, C, grad, x, mask, out);
  });
}

const char* run_loss(int device, int type, long long N, long long V, long long stride, long long ignore, const void* logits,
                     const long long* target, double* log_sums, double* sums) {
  return guarded(device, nullptr, [&](const Place& place) {
    loss(place, {N, V, stride, ignore, static_cast<Type>(type), logits, target}, log_sums, sums);
  });
}

const char* run_loss_backward(int device, int type, long long N, long long V, long long stride, long long ignore,
                              const void* logits, const long long* target, const void* grad, const double* log_sums,
                              double nll_share, double all_share, void* out) {
  return guarded(device, nullptr, [&](const Place& place) {
    loss_backward(place, {N, V, stride, ignore, static_cast<Type>(type), logits, target}, grad, log_sums, nll_share,
                  all_share, out);
  });
}

const char* run_step(int device, int type, long long N, long long M, long long H, long long R, long long K, int dynamic, int softmax,
                     const void* x, const void* logits, void* ring, int* ancestors, long long* position, void* out) {
  return guarded(device, nullptr, [&](const Place& place) {
    step(place, {N, M, H, R, K, static_cast<Type>(type), dynamic != 0, softmax != 0, x, logits, ring, ancestors,
                 position, out});
  });
}

const char* compile_only(const char* source, int capability) {
  return guarded(0, nullptr, [&](const Place&) { compile(source, capability); });
}
}
