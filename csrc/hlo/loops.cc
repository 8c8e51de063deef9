// SPDX-License-Identifier: Apache-2.0
#include "hlo/loops.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "hlo/inline.h"
#include "hlo/numbering.h"

namespace tpu::hlo {
namespace {

bool is_while(const Node& node) { return node.name == "stablehlo.while"; }

// The value that `v` is another form of.
Value bare(Value v) {
  while (v.node()->name == "stablehlo.convert" || v.node()->name == "stablehlo.reshape") v = v.node()->operands[0];
  return v;
}

std::optional<int64_t> integer(Value v) {
  v = bare(v);
  return v.numel() == 1 ? splat_integer(v) : std::nullopt;
}

// Which argument of `region` it is; -1: none.
int argument(const Region& region, Value v) {
  v = bare(v);
  for (size_t i = 0; i < region.arguments().size(); ++i)
    if (region.arguments()[i].same(v)) return static_cast<int>(i);
  return -1;
}

// What each pass adds to the number that is argument `i`.
std::optional<int64_t> step(const Region& body, size_t i) {
  const Node& node = *bare(body.results()[i]).node();
  const bool add = node.name == "stablehlo.add";
  if (!add && node.name != "stablehlo.subtract") return {};
  for (int side : {0, 1}) {
    if (side == 1 && !add) break;
    if (argument(body, node.operands[static_cast<size_t>(side)]) != static_cast<int>(i)) continue;
    const auto by = integer(node.operands[static_cast<size_t>(1 - side)]);
    if (by) return add ? *by : -*by;
  }
  return {};
}

double trips_of(const Node& loop) {
  const Region &condition = *loop.regions[0], &body = *loop.regions[1];
  const Node& test = *bare(condition.results()[0]).node();
  if (test.name != "stablehlo.compare") return 0;
  const bool swapped = argument(condition, test.operands[0]) < 0;
  const int at = argument(condition, test.operands[swapped ? 1 : 0]);
  const auto bound = integer(test.operands[swapped ? 0 : 1]);
  if (at < 0 || !bound) return 0;
  const auto first = integer(loop.operands[static_cast<size_t>(at)]), by = step(body, static_cast<size_t>(at));
  if (!first || !by || *by == 0) return 0;
  const auto is = [&](std::string_view direction) {
    return test.attributes.find("comparison_direction " + std::string(direction) + ">") != std::string::npos;
  };
  const bool less = is("LT") || is("LE"), more = is("GT") || is("GE");
  if (!less && !more) return 0;
  const bool upward = less != swapped;  // goes on while the number is below the bound
  if (upward != (*by > 0)) return 0;
  const double way = upward ? double(*bound) - double(*first) : double(*first) - double(*bound);
  const double stride = std::abs(double(*by));
  const double passes = is("LE") || is("GE") ? std::floor(way / stride) + 1 : std::ceil(way / stride);
  return std::max(passes, 0.0);
}

void collect_captured(const Region& region, const Numbering& live, std::unordered_set<const Region*>& inside,
                      Values& out) {
  inside.insert(&region);
  const auto add = [&](Value v) {
    if (inside.contains(v.node()->parent)) return;
    for (Value known : out)
      if (known.same(v)) return;
    out.push_back(v);
  };
  for (const Node& node : region.nodes()) {
    if (!live.live(node)) continue;
    for (Value v : node.operands) add(v);
    for (const Region* nested : node.regions) collect_captured(*nested, live, inside, out);
  }
  for (Value v : region.results()) add(v);
}

// A body as a module: its arguments, then what it uses from outside, are the parameters.
std::string module_of(const Graph& graph, const Region& body, const Numbering& live, std::string_view name) {
  Values given = body.arguments();
  std::unordered_set<const Region*> inside;
  collect_captured(body, live, inside, given);
  Graph alone;
  Values parameters;
  for (Value v : given) parameters.push_back(alone.parameter(v.type()));
  alone.set_results(inline_region(alone, graph, body, given, parameters));
  return print_mlir(alone, name);
}

void add_loops(const Graph& graph, const Region& region, const Numbering& live, std::string_view name, int around,
               std::vector<Loop>& out) {
  for (const Node& node : region.nodes()) {
    if (!live.live(node)) continue;
    int inner = around;
    if (is_while(node)) {
      Loop loop{around, trips_of(node), {}};
      if (loop.trips > 0) loop.body = module_of(graph, *node.regions[1], live, name);
      inner = static_cast<int>(out.size());
      out.push_back(std::move(loop));
    }
    for (const Region* nested : node.regions) add_loops(graph, *nested, live, name, inner, out);
  }
}

void add_products(const Region& region, const Numbering& live, double times, Products& sum) {
  for (const Node& node : region.nodes()) {
    if (!live.live(node)) continue;
    sum.flops += times * node.flops;
    const bool wide = node.flops > 0 && node.operands[0].dtype() == DType::F32 &&
                      node.attributes.find("HIGHEST") != std::string::npos;
    if (wide) sum.wide_flops += times * node.flops;
    const double trips = is_while(node) ? trips_of(node) : 0;
    for (const Region* nested : node.regions) add_products(*nested, live, trips > 0 ? times * trips : times, sum);
  }
}

}  // namespace

Products count_products(const Graph& graph) {
  Products sum;
  add_products(graph.body(), Numbering(graph), 1, sum);
  return sum;
}

std::vector<Loop> find_loops(const Graph& graph, std::string_view module_name) {
  std::vector<Loop> out;
  add_loops(graph, graph.body(), Numbering(graph), module_name, -1, out);
  return out;
}

}  // namespace tpu::hlo
