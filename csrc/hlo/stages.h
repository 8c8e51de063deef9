// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hlo/graph.h"

namespace tpu::hlo {

// Which parameters a compiler that fuses loops reads in more than one of them: those with several readers in
// a graph that can't be one loop, as it has reductions, products, windows and the like.
std::vector<bool> read_in_stages(const Graph& graph);

}  // namespace tpu::hlo
