// SPDX-License-Identifier: Apache-2.0
#include "hlo/inline.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "hlo/math.h"
#include "hlo/numbering.h"
#include "hlo/ops.h"

namespace tpu::hlo {
namespace {

// XLA's CPU programs write an update in place, fused with what computes it. Where that reads other places
// of the operand (a rotation of rows, say), they read what they have just written. So an update that
// depends on its operand through operations that fuse is not written in place.
bool overwrites_what_it_reads(const Values& operands) {
  static const std::unordered_set<std::string_view> kMoves = {
      "stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice", "stablehlo.pad", "stablehlo.bitcast_convert"};
  static const std::unordered_set<std::string_view> kNotFused = {
      "stablehlo.dot_general", "stablehlo.convolution", "stablehlo.sort",        "stablehlo.while",
      "stablehlo.fft",         "stablehlo.cholesky",    "stablehlo.custom_call", "stablehlo.scatter"};
  const Node* base = operands[0].node();
  while (kMoves.contains(base->name)) base = base->operands[0].node();
  if (base->name == "stablehlo.constant" || base->name == "stablehlo.broadcast_in_dim") return false;
  std::vector<const Node*> todo{operands[1].node()};
  std::unordered_set<const Node*> seen;
  while (!todo.empty()) {
    const Node* node = todo.back();
    todo.pop_back();
    if (node == base) return true;
    if (kNotFused.contains(node->name) || !seen.insert(node).second) continue;
    for (Value v : node->operands) todo.push_back(v.node());
  }
  return false;
}

class Inliner {
 public:
  Inliner(Graph& graph, const Graph& callee) : graph_(graph), live_(callee) {}

  void bind(const Values& from, const Values& to) {
    TPU_INTERNAL(from.size() == to.size(), "inlining with ", to.size(), " arguments for ", from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      Values& results = bound_[from[i].node()];
      results.resize(from[i].node()->results.size());
      results[static_cast<size_t>(from[i].index())] = to[i];
    }
  }

  void copy(const Region& region) {
    for (const Node& node : region.nodes()) {
      if (node.name.empty() || !live_.live(node)) continue;
      if (node.name == "stablehlo.dynamic_update_slice") {
        const Values operands = mapped(node.operands);
        if (overwrites_what_it_reads(operands)) {
          map_[&node] = update_by_select(operands[0], operands[1], {operands.begin() + 2, operands.end()}).node();
          continue;
        }
      }
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
      const auto bound = bound_.find(v.node());
      out.push_back(bound == bound_.end() ? Value(map_.at(v.node()), v.index())
                                          : bound->second[static_cast<size_t>(v.index())]);
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
  std::unordered_map<const Node*, Values> bound_;  // a parameter may become any result of a node
};

}  // namespace

Values inline_graph(Graph& graph, const Graph& callee, const Values& arguments) {
  return inline_region(graph, callee, callee.body(), callee.body().arguments(), arguments);
}

Values inline_region(Graph& graph, const Graph& callee, const Region& region, const Values& given,
                     const Values& arguments) {
  Inliner inliner(graph, callee);
  inliner.bind(given, arguments);
  inliner.copy(region);
  return inliner.mapped(region.results());
}

}  // namespace tpu::hlo
