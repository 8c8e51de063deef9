// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>
#include <vector>

#include "hlo/graph.h"

namespace tpu::hlo {

// Which nodes of a graph some result needs, and their numbers in the order of printing, nested
// regions included. Shared by the printer and the hash, so that equal text and equal hash agree.
class Numbering {
 public:
  explicit Numbering(const Graph& graph);
  bool live(const Node& node) const { return at(node) >= 0; }
  int number(const Node& node) const { return at(node); }  // parameters of the graph: their position

 private:
  static constexpr int kDead = -1;
  static constexpr int kLive = -2;
  int at(const Node& node) const { return slots(node.parent)[static_cast<size_t>(node.id)]; }
  const std::vector<int>& slots(const Region* region) const {
    return region == body_ ? of_body_ : of_nested_.at(region);
  }
  std::vector<int>& slots(const Region* region) { return region == body_ ? of_body_ : of_nested_.at(region); }
  void mark(const Region& region);
  void number_nodes(const Region& region);

  const Region* body_;
  std::vector<int> of_body_;
  std::unordered_map<const Region*, std::vector<int>> of_nested_;
  int next_ = 0;
};

}  // namespace tpu::hlo
