// SPDX-License-Identifier: Apache-2.0
#include "hlo/stages.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "hlo/numbering.h"

namespace tpu::hlo {

std::vector<bool> read_in_stages(const Graph& graph) {
  // They only pass on what they read.
  static const std::unordered_set<std::string_view> kMoves = {"stablehlo.reshape", "stablehlo.transpose",
                                                              "stablehlo.convert", "stablehlo.broadcast_in_dim"};
  static const std::unordered_set<std::string_view> kStages = {"stablehlo.reduce",
                                                               "stablehlo.reduce_window",
                                                               "stablehlo.dot_general",
                                                               "stablehlo.convolution",
                                                               "stablehlo.scatter",
                                                               "stablehlo.select_and_scatter",
                                                               "stablehlo.sort",
                                                               "stablehlo.while",
                                                               "stablehlo.fft",
                                                               "stablehlo.custom_call",
                                                               "chlo.top_k"};
  const Values& parameters = graph.body().arguments();
  const Numbering live(graph);
  std::unordered_map<const Node*, int> readers;  // of parameters, and of what only moves them
  std::unordered_map<const Node*, const Node*> origin;
  for (Value p : parameters) origin[p.node()] = p.node();
  bool staged = false;
  for (const Node& node : graph.body().nodes()) {
    if (node.name.empty() || !live.live(node)) continue;
    staged = staged || kStages.contains(node.name);
    std::unordered_set<const Node*> read;
    for (Value v : node.operands) {
      const auto from = origin.find(v.node());
      if (from == origin.end()) continue;
      if (kMoves.contains(node.name))
        origin[&node] = from->second;
      else if (read.insert(from->second).second)
        ++readers[from->second];
    }
  }
  std::vector<bool> out;
  for (Value p : parameters) out.push_back(staged && readers[p.node()] > 1);
  return out;
}

}  // namespace tpu::hlo
