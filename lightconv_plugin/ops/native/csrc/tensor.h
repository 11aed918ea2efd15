// The parts of torch that the operators use, all from its stable ABI.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace lightconv {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Calls torch::stable::contiguous only if necessary: it looks the operator up by its name, which takes as long as the
// sums of a small convolution.
inline Tensor as_contiguous(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

}  // namespace lightconv
