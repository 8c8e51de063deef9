// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::aten {

// Sends operators that nothing lowers to the CPU, counted and, once each, announced.
// TORCH_TPU_CPU_FALLBACK=warn|allow|error decides what happens.
void register_fallback();

enum class FallbackPolicy : int { Warn = 0, Allow = 1, Error = 2 };
FallbackPolicy fallback_policy();
void set_fallback_policy(FallbackPolicy policy);

}  // namespace tpu::aten
