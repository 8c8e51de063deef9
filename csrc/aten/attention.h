// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch {
class Library;
}

namespace tpu::aten {

// torch.nn.functional.scaled_dot_product_attention: PyTorch asks the device which form to take
// (_fused_sdp_choice) and then calls _scaled_dot_product_fused_attention_overrideable. That
// operator returns plain integers too, so it stands on operators of our own with tensors alone.
void define_attention(torch::Library& tpu);
void register_attention(torch::Library& aten);

}  // namespace tpu::aten
