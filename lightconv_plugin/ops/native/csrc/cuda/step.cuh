// One decoding step: the newest input is written to its slot of the ring, and each hypothesis sums its last K inputs,
// which it finds through `ancestors`. The slot that is written is never read in the same step, so rows need not wait
// for each other.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

template <Case C> __device__ __forceinline__ void step(const StepArgs& args, unsigned char* shared) {
  using S = typename Scalar<C.type>::type;
  using A = typename Scalar<C.type>::sum;
  constexpr StepTile tile = step_tile(C);
  constexpr int K = C.K, V = tile.vector, groups = ceil_div(C.H, tile.heads), channels = C.H * C.R;
  const int n = blockIdx.x / groups, head = static_cast<int>(blockIdx.x % groups) * tile.heads;
  const int present = smaller(tile.heads, C.H - head);
  // The upper 32 bits count the blocks that have read the position; the last block advances it.
  const long long position = static_cast<unsigned int>(*args.position);
  const int slot = static_cast<int>(position % K), inputs = position + 1 < K ? static_cast<int>(position) + 1 : K;
  long long* places = reinterpret_cast<long long*>(shared);  // index into the ring of the input of each age
  A* weights = reinterpret_cast<A*>(shared + tile.weights_offset);

  for (int age = 1 + threadIdx.x; age < inputs; age += tile.threads) {
    const int from = (slot + K - age) % K;
    places[age] = (static_cast<long long>(from) * args.M + args.ancestors[static_cast<long long>(from) * args.N + n]) * channels;
  }
  const S* logits = static_cast<const S*>(args.logits) + ((C.dynamic ? static_cast<long long>(n) : 0) * C.H + head) * K;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < present; h += tile.threads / 32) {
    const S* row = logits + h * K;
    A most = -__int_as_float(0x7f800000), sum = 0;
    for (int j = lane; j < K; j += 32) {
      const A logit = widen(row[j]);
      weights[h * K + j] = logit;
      most = logit > most ? logit : most;
    }
    if constexpr (C.softmax) {
      most = lanes_max<32>(most);
      for (int j = lane; j < K; j += 32) sum += weights[h * K + j] = exponential(weights[h * K + j] - most);
      sum = A(1) / lanes_sum<32>(sum);
      for (int j = lane; j < K; j += 32) weights[h * K + j] *= sum;
    }
  }
  __syncthreads();

  const S* x = static_cast<const S*>(args.x) + static_cast<long long>(n) * channels;
  S* ring = static_cast<S*>(args.ring);
  for (int i = threadIdx.x * V; i < present * C.R; i += tile.threads * V) {
    const int c = head * C.R + i;
    const A* weight = weights + i / C.R * K + K - 1;
    const Vec<S, V> newest = load_fixed<S, V>(x + c);
    A sum[V], value[V];
    widen(newest, value);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = weight[0] * value[v];
#pragma unroll 8
    for (int age = 1; age < inputs; ++age) {
      widen(load<S, V>(ring + places[age] + c), value);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += weight[-age] * value[v];
    }
    store<S, V>(ring + (static_cast<long long>(slot) * args.M + n) * channels + c, newest);
    store<S, V>(static_cast<S*>(args.out) + static_cast<long long>(n) * channels + c, narrow<S, V>(sum));
  }
  if (threadIdx.x == 0) {
    if (head == 0) args.ancestors[static_cast<long long>(slot) * args.N + n] = n;
    const auto before = atomicAdd(reinterpret_cast<unsigned long long*>(args.position), 1ull << 32) >> 32;
    if (before == gridDim.x - 1) *args.position = position + 1;
  }
}

}  // namespace lightconv::cuda
