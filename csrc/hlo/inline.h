// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hlo/graph.h"

namespace tpu::hlo {

// Copies what `callee` computes into `graph`, at its current region, with `arguments` for the
// callee's parameters (equal types, same count). Returns the callee's results.
Values inline_graph(Graph& graph, const Graph& callee, const Values& arguments);

// The same for one region of `callee`: `given` are its arguments and what it uses from outside,
// `arguments` the values in their place.
Values inline_region(Graph& graph, const Graph& callee, const Region& region, const Values& given,
                     const Values& arguments);

}  // namespace tpu::hlo
