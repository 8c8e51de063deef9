// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::aten {

// PyTorch's autograd engine makes one worker for each device when the first backward runs. Where
// that happened before the device was loaded, this adds the missing workers. Harmless otherwise.
void add_autograd_workers();

}  // namespace tpu::aten
