// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace tpu::aten {

// What PyTorch's meta kernel of an operator says of one call.
struct MetaResult {
  bool known = false;                 // false: the operator has no meta kernel
  std::vector<at::Tensor> results;    // flat, lists opened; undefined where the kernel gave none
  std::vector<at::Tensor> arguments;  // the tensor arguments, flat, as the kernel left them (out= sizes)
};

// Runs the meta kernel on `arguments`, the last entries of a stack, with every tensor replaced by a
// meta tensor of the same geometry. Throws whatever the meta kernel throws: PyTorch's own words.
MetaResult run_meta(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace tpu::aten
