// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tpu::aten {

// Views, factories, copies and the other operators that are no graphs.
void register_views();

// Schemas of the operators in the namespace `tpu`.
void define_own_operators();

}  // namespace tpu::aten
