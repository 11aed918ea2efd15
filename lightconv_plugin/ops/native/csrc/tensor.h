// The parts of torch that the operators use: its stable ABI alone.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace lightconv {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

}  // namespace lightconv
