// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>
#include <vector>

#include "hlo/graph.h"

namespace tpu::hlo {

// What the elements of an integer value can be: elements of these parameters, and numbers from `low` to `high`.
// Only moving, choosing and converting is followed; arithmetic leaves it unknown.
struct Bounds {
  bool known = false;
  std::vector<int> parameters;                // sorted
  int64_t low = INT64_MAX, high = INT64_MIN;  // none, at first
  // What the parameters' elements must lie in, or a conversion on the way has changed them.
  int64_t fits_low = INT64_MIN, fits_high = INT64_MAX;
};

// Bounds of the values of one graph.
class BoundsOf {
 public:
  explicit BoundsOf(const Graph& graph);
  Bounds operator()(Value v);

 private:
  Bounds compute(Value v);
  Bounds of_reduce(const Node& reduce, int result);

  std::unordered_map<const Node*, std::unordered_map<int, Bounds>> memo_;
};

}  // namespace tpu::hlo
