// SPDX-License-Identifier: Apache-2.0
#include "hlo/inline.h"

#include <unordered_map>

#include "base/error.h"
#include "hlo/numbering.h"

namespace tpu::hlo {
namespace {

class Inliner {
 public:
  Inliner(Graph& graph, const Graph& callee) : graph_(graph), live_(callee) {}

  void bind(const Values& from, const Values& to) {
    TPU_INTERNAL(from.size() == to.size(), "inlining with ", to.size(), " arguments for ", from.size());
    for (size_t i = 0; i < from.size(); ++i)
      map_[from[i].node()] = to[i].node(), shift_[from[i].node()] = to[i].index();
  }

  void copy(const Region& region) {
    for (const Node& node : region.nodes()) {
      if (node.name.empty() || !live_.live(node)) continue;
      std::vector<Region*> regions;
      for (const Region* nested : node.regions) regions.push_back(copy_nested(*nested));
      Node* copy = graph_.current().append(node.name, mapped(node.operands), node.results, node.attributes, regions);
      copy->flops = node.flops;
      map_[&node] = copy;
    }
  }

  Values mapped(const Values& values) const {
    Values out;
    for (Value v : values) {
      const auto shift = shift_.find(v.node());
      out.emplace_back(map_.at(v.node()), shift == shift_.end() ? v.index() : shift->second);
    }
    return out;
  }

 private:
  Region* copy_nested(const Region& region) {
    std::vector<Type> types;
    for (Value v : region.arguments()) types.push_back(v.type());
    return graph_.region(types, [&](const Values& arguments) {
      bind(region.arguments(), arguments);
      copy(region);
      return mapped(region.results());
    });
  }

  Graph& graph_;
  Numbering live_;
  std::unordered_map<const Node*, Node*> map_;
  std::unordered_map<const Node*, int> shift_;  // a parameter may become any result of a node
};

}  // namespace

Values inline_graph(Graph& graph, const Graph& callee, const Values& arguments) {
  Inliner inliner(graph, callee);
  inliner.bind(callee.body().arguments(), arguments);
  inliner.copy(callee.body());
  return inliner.mapped(callee.body().results());
}

}  // namespace tpu::hlo
