// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch {
class Library;
}

namespace tpu::aten {

// Operators that PyTorch writes anew for each backend although others say what they do.
void register_composed(torch::Library& aten);

}  // namespace tpu::aten
