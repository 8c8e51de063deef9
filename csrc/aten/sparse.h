// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::aten {

// COO and compressed sparse tensors, whose parts lie on the device.
void register_sparse();

}  // namespace tpu::aten
