// SPDX-License-Identifier: Apache-2.0
#include "hlo/bounds.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace tpu::hlo {
namespace {

Bounds numbers(int64_t low, int64_t high) { return {true, {}, low, high}; }

Bounds join(const Bounds& a, const Bounds& b) {
  if (!a.known || !b.known) return {};
  Bounds out = a;
  out.parameters.clear();
  std::set_union(a.parameters.begin(), a.parameters.end(), b.parameters.begin(), b.parameters.end(),
                 std::back_inserter(out.parameters));
  out.low = std::min(a.low, b.low);
  out.high = std::max(a.high, b.high);
  out.fits_low = std::max(a.fits_low, b.fits_low);
  out.fits_high = std::min(a.fits_high, b.fits_high);
  return out;
}

bool equal(const Bounds& a, const Bounds& b) {
  return a.known == b.known && a.parameters == b.parameters && a.low == b.low && a.high == b.high;
}

// The numbers that a dtype holds; none for one that is no integer.
std::optional<std::pair<int64_t, int64_t>> limits(DType t) {
  switch (t) {
    case DType::PRED: return {{0, 1}};
    case DType::S8: return {{INT8_MIN, INT8_MAX}};
    case DType::S16: return {{INT16_MIN, INT16_MAX}};
    case DType::S32: return {{INT32_MIN, INT32_MAX}};
    case DType::S64: return {{INT64_MIN, INT64_MAX}};
    case DType::U8: return {{0, UINT8_MAX}};
    case DType::U16: return {{0, UINT16_MAX}};
    case DType::U32: return {{0, UINT32_MAX}};
    default: return std::nullopt;
  }
}

int64_t iota_length(const Node& node) {
  const std::string_view text = node.attributes;
  size_t dim = 0;
  const size_t at = text.find("= ") + 2;
  std::from_chars(text.data() + at, text.data() + text.size(), dim);
  return node.results[0].dims.at(dim);
}

}  // namespace

BoundsOf::BoundsOf(const Graph& graph) {
  const Values& parameters = graph.body().arguments();
  for (size_t i = 0; i < parameters.size(); ++i) memo_[parameters[i].node()][0] = {true, {static_cast<int>(i)}};
}

Bounds BoundsOf::operator()(Value v) {
  if (!v || !limits(v.dtype())) return {};
  auto& of_node = memo_[v.node()];
  if (const auto found = of_node.find(v.index()); found != of_node.end()) return found->second;
  Bounds bounds = compute(v);
  const auto [low, high] = *limits(v.dtype());
  if (!bounds.known && low != INT64_MIN && v.dtype() != DType::S32) bounds = numbers(low, high);
  return memo_[v.node()][v.index()] = bounds;
}

Bounds BoundsOf::compute(Value v) {
  static const std::unordered_set<std::string_view> kMoves = {
      "stablehlo.reshape", "stablehlo.transpose",     "stablehlo.slice",  "stablehlo.broadcast_in_dim",
      "stablehlo.reverse", "stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.optimization_barrier",
      "stablehlo.sort"};
  const Node& node = *v.node();
  const std::string_view name = node.name;
  const auto operand = [&](size_t i) { return (*this)(node.operands[i]); };
  if (name.empty()) return {};  // a region's argument that nobody has bound
  if (kMoves.contains(name))
    return operand(static_cast<size_t>(node.operands.size() == node.results.size() ? v.index() : 0));
  if (name == "stablehlo.constant") {
    const auto value = splat_integer(v);
    return value ? numbers(*value, *value) : Bounds{};
  }
  if (name == "stablehlo.iota") return numbers(0, std::max<int64_t>(iota_length(node) - 1, 0));
  if (name == "chlo.top_k" && v.index() == 1)
    return numbers(0, std::max<int64_t>(node.operands[0].type().dims.back() - 1, 0));
  if (name == "stablehlo.select") return join(operand(1), operand(2));
  if (name == "stablehlo.dynamic_update_slice" || name == "stablehlo.pad") return join(operand(0), operand(1));
  if (name == "stablehlo.minimum" || name == "stablehlo.maximum") {
    const auto [low, high] = *limits(v.dtype());
    Bounds a = operand(0), b = operand(1);
    if (!a.known) a = numbers(low, high);
    if (!b.known) b = numbers(low, high);
    if (!a.parameters.empty() || !b.parameters.empty()) return join(a, b);
    if (name == "stablehlo.minimum") return numbers(std::min(a.low, b.low), std::min(a.high, b.high));
    return numbers(std::max(a.low, b.low), std::max(a.high, b.high));
  }
  if (name == "stablehlo.concatenate") {
    Bounds all = operand(0);
    for (size_t i = 1; i < node.operands.size(); ++i) all = join(all, operand(i));
    return all;
  }
  if (name == "stablehlo.clamp") {
    const Bounds low = operand(0), high = operand(2);
    return join(low, high);
  }
  if (name == "stablehlo.convert") {
    Bounds from = operand(0);
    if (!from.known) return {};
    const auto [low, high] = *limits(v.dtype());
    if (from.low <= from.high && (from.low < low || from.high > high)) return {};
    from.fits_low = std::max(from.fits_low, low);
    from.fits_high = std::min(from.fits_high, high);
    return from;
  }
  if (name == "stablehlo.reduce") return of_reduce(node, v.index());
  return {};
}

// A reduction that only chooses among what it is given: the place of the largest, say.
Bounds BoundsOf::of_reduce(const Node& reduce, int result) {
  const Region& region = *reduce.regions[0];
  const size_t n = reduce.results.size();
  const auto at = static_cast<size_t>(result);
  const Bounds all = join((*this)(reduce.operands[at]), (*this)(reduce.operands[n + at]));
  if (!all.known) return {};
  for (size_t argument : {at, n + at}) memo_[region.arguments()[argument].node()][0] = all;
  return equal((*this)(region.results()[at]), all) ? all : Bounds{};
}

}  // namespace tpu::hlo
