// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hlo/graph.h"

namespace tpu::hlo {

// Copies what `callee` computes into `graph`, at its current region, with `arguments` for the
// callee's parameters (equal types, same count). Returns the callee's results.
Values inline_graph(Graph& graph, const Graph& callee, const Values& arguments);

}  // namespace tpu::hlo
