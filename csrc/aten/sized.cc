// SPDX-License-Identifier: Apache-2.0
// Operators whose output size depends on data.
#include <torch/library.h>

namespace tpu::aten {

void register_sized(torch::Library&);
void register_sized(torch::Library&) {}

}  // namespace tpu::aten
