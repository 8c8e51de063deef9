// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

#include "lowering/op.h"

namespace tpu::aten {

// Code on PyTorch tensors that stands in for a lowering: called once for each kind of call, on
// placeholder tensors, while its launches are captured into the plan's graph. Takes the arguments
// off the stack and pushes the returns.
using TensorBody = std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;

// A definition for an operator whose body is a TensorBody: every tensor a run-time operand, the
// rest part of the key. Lives for the process.
const lowering::OpDef& captured_definition(const c10::FunctionSchema& schema);

// Serves each of these operators ("aten::name.overload") by `body`, unless it is lowered already.
// Where the body can't be captured (it reads a value), the call goes to the CPU fallback.
void register_decompositions(const std::vector<std::string>& operators, TensorBody body);

}  // namespace tpu::aten
