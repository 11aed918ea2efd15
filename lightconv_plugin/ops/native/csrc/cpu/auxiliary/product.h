// Products in bfloat16 on all threads.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/auxiliary/bf16.h"
#include "tensor.h"

namespace lightconv {

Bf16Units bf16_units();  // those that the process may use

// A place in memory kept from call to call, beginning at a multiple of 64 bytes.
inline uint16_t* kept(std::vector<uint16_t>& place, int64_t count) {
  if (static_cast<int64_t>(place.size()) < count + 32) place.resize(count + 32);
  return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(place.data()) + 63) / 64 * 64);
}

void check_packed(const Tensor& packed, int64_t out, int64_t in);
void pack(const Matrix& b, int64_t N, int64_t K, uint16_t* packed);
void run(const Product& product);

}  // namespace lightconv
