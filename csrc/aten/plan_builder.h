// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "aten/kernel.h"

namespace tpu::aten {

// The slow path, once for each kind of call: checks the arguments with PyTorch's meta kernel,
// lowers the operator into a graph, and works out how its results reach PyTorch. Throws what CPU
// PyTorch would throw for bad arguments.
std::unique_ptr<OpPlan> build_plan(const OpKernel& kernel, const c10::OperatorHandle& op,
                                   const torch::jit::Stack& stack, const Call& call);

}  // namespace tpu::aten
