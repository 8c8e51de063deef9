// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch {
class Library;
}

namespace tpu::aten {

// Quantization-aware training: fused_moving_avg_obs_fake_quant, the observer and the rounding in one call.
void register_observed(torch::Library& aten);

}  // namespace tpu::aten
