// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch {
class Library;
}

namespace tpu::aten {

void register_grouped(torch::Library& aten);  // _grouped_mm

}  // namespace tpu::aten
