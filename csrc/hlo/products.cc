// SPDX-License-Identifier: Apache-2.0
#include "hlo/graph.h"
#include "hlo/numbering.h"

namespace tpu::hlo {
namespace {

void add_products(const Region& region, const Numbering& numbers, Products& sum) {
  for (const Node& node : region.nodes()) {
    if (!numbers.live(node)) continue;
    sum.loops += node.name == "stablehlo.while";
    sum.flops += node.flops;
    const bool wide = node.flops > 0 && node.operands[0].dtype() == DType::F32 &&
                      node.attributes.find("HIGHEST") != std::string::npos;
    if (wide) sum.wide_flops += node.flops;
    for (const Region* nested : node.regions) add_products(*nested, numbers, sum);
  }
}

}  // namespace

Products count_products(const Graph& graph) {
  Products sum;
  add_products(graph.body(), Numbering(graph), sum);
  return sum;
}

}  // namespace tpu::hlo
