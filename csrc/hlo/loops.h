// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hlo/graph.h"

namespace tpu::hlo {

// What a graph's matrix products and convolutions cost, by the kind of arithmetic. The body of a loop
// counts as often as it runs where that is known, else once.
struct Products {
  double flops = 0;       // of all
  double wide_flops = 0;  // of those, in float32 at Precision::HIGHEST
};
Products count_products(const Graph& graph);

// A while loop, outer ones first.
struct Loop {
  int around = -1;   // the loop that it stands in; -1: none
  double trips = 0;  // how often the body runs each time it is reached; 0: known only when it runs
  std::string body;  // one pass as a module of its own; empty where trips are 0
};
// The loops of a graph. A count is known where a number that starts at a constant, and to which each pass
// adds a constant, is compared with a constant.
std::vector<Loop> find_loops(const Graph& graph, std::string_view module_name);

}  // namespace tpu::hlo
