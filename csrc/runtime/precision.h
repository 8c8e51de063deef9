// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::runtime {

// Whether XLA may keep more bits than a program's types say between two fused operations (its
// option xla_allow_excess_precision). Off by default: PyTorch rounds after each operator.
// Process-wide, thread-safe; a program's compile options and cache key must include it.
bool allow_excess_precision();
void set_allow_excess_precision(bool allow);

}  // namespace tpu::runtime
