// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::aten {

// Has PyTorch's profiler ask this device for its activity (ProfilerActivity.PrivateUse1).
void register_profiler();

}  // namespace tpu::aten
