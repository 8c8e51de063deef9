// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tpu::aten {

// Sends operators that nothing lowers to the CPU, counted and, once each, announced.
// TORCH_TPU_CPU_FALLBACK=warn|allow|error decides what happens.
void register_fallback();

// The fallback itself. `kernel`: whose kernel runs, CPU or one of the CPU's sparse kinds.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack,
               c10::DispatchKey kernel = c10::DispatchKey::CPU);

enum class FallbackPolicy : int { Warn = 0, Allow = 1, Error = 2 };
FallbackPolicy fallback_policy();  // as the environment says now

}  // namespace tpu::aten
