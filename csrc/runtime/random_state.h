// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tpu::runtime {

// State of a counter-based (Philox) generator. Each random operator takes the pair as run-time
// operands and moves the offset on by what it consumed.
struct RandomState {
  uint64_t seed = 67280421310721;  // PyTorch's default seed
  uint64_t offset = 0;
};

}  // namespace tpu::runtime
