// SPDX-License-Identifier: Apache-2.0
#include "hlo/padded.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "base/error.h"
#include "hlo/padded_rules.h"

namespace tpu::hlo {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Listing::Listing(const Graph& graph) : graph_(graph), live_(graph) { list(graph.body(), false); }

void Listing::list(const Region& region, bool isolated) {
  for (const Node& node : region.nodes()) {
    if (!live_.live(node)) continue;
    at_.emplace(&node, items_.size());
    items_.push_back({&node, integers_.size(), reals_.size(), {}, {}, {}, isolated});
    read(items_.back());
    for (const Region* nested : node.regions) list(*nested, isolated || !has_open_regions(node));
  }
}

void Listing::read(Item& item) {
  for (const Type& type : item.node->results) integers_.insert(integers_.end(), type.dims.begin(), type.dims.end());
  std::string_view text = item.node->attributes;
  // The type of a constant repeats its sizes.
  if (item.node->name == "stablehlo.constant") text = text.substr(0, text.rfind("> : tensor"));
  const bool floating = item.node->name == "stablehlo.constant" &&
                        (is_floating(item.node->results[0].dtype) || is_complex(item.node->results[0].dtype));
  for (size_t i = 0; i < text.size();) {
    const bool begins = (is_digit(text[i]) || (text[i] == '-' && i + 1 < text.size() && is_digit(text[i + 1]))) &&
                        (i == 0 || !is_word(text[i - 1]));
    if (!begins || text.substr(i).starts_with("0x")) {
      item.skeleton += text[i++];
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() &&
           (is_digit(text[end]) || text[end] == '.' ||
            (floating && (text[end] == 'e' || ((text[end] == '-' || text[end] == '+') && text[end - 1] == 'e')))))
      ++end;
    const char* first = text.data() + i;
    const char* last = text.data() + end;
    if (floating) {
      double v = 0;
      std::from_chars(first, last, v);
      item.real_places.push_back(i);
      reals_.push_back(v);
    } else {
      int64_t v = 0;
      if (std::from_chars(first, last, v).ec != std::errc()) {
        uint64_t large = 0;
        std::from_chars(first, last, large);
        v = static_cast<int64_t>(large);
      }
      item.integer_places.push_back(i);
      integers_.push_back(v);
    }
    item.skeleton += '#';
    i = end;
  }
}

std::string Listing::difference(const Listing& other) const {
  const auto same_values = [&](const Values& a, const Values& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].index() != b[i].index() || at_.at(a[i].node()) != other.at_.at(b[i].node())) return false;
    }
    return true;
  };
  const size_t count = std::min(items_.size(), other.items_.size());
  for (size_t i = 0; i < count; ++i) {
    const Node &a = *items_[i].node, &b = *other.items_[i].node;
    const std::string name = a.name.empty() ? "a parameter" : a.name;
    if (a.name != b.name) return name + " became " + (b.name.empty() ? "a parameter" : b.name);
    if (items_[i].skeleton != other.items_[i].skeleton) return name + ": other attributes";
    if (items_[i].isolated != other.items_[i].isolated || !same_values(a.operands, b.operands) ||
        a.results.size() != b.results.size() || a.regions.size() != b.regions.size())
      return name + ": other operands";
    for (size_t k = 0; k < a.results.size(); ++k) {
      if (a.results[k].dtype != b.results[k].dtype || a.results[k].dims.size() != b.results[k].dims.size())
        return name + ": another rank or dtype";
    }
    for (size_t k = 0; k < a.regions.size(); ++k) {
      if (!same_values(a.regions[k]->results(), b.regions[k]->results())) return name + ": another region";
    }
  }
  if (items_.size() != other.items_.size()) return "another number of operations";
  if (!same_values(graph_.body().arguments(), other.graph_.body().arguments()) ||
      !same_values(graph_.body().results(), other.graph_.body().results()))
    return "other parameters or results";
  return {};
}

PaddedGraph::PaddedGraph(std::shared_ptr<const Graph> graph, const std::vector<const Graph*>& samples)
    : graph_(std::move(graph)), listing_(*graph_) {
  std::vector<Listing> others;
  for (const Graph* sample : samples) {
    others.emplace_back(*sample);
    if (std::string why = listing_.difference(others.back()); !why.empty()) throw NotPadded(why);
  }
  const auto assign = [&](const auto& own, const auto& numbers_of, std::vector<int>& slot_of, auto& padded) {
    using T = std::decay_t<decltype(own[0])>;
    std::map<std::vector<T>, int> slots;
    for (size_t i = 0; i < own.size(); ++i) {
      std::vector<T> values{own[i]};
      bool varies = false;
      for (const Listing& other : others) {
        values.push_back(numbers_of(other)[i]);
        varies = varies || std::memcmp(&values.back(), &values.front(), sizeof(T)) != 0;
      }
      if (!varies) {
        slot_of.push_back(-1);
        continue;
      }
      const auto [found, fresh] = slots.emplace(std::move(values), static_cast<int>(padded.size()));
      if (fresh) padded.push_back(own[i]);
      slot_of.push_back(found->second);
    }
  };
  assign(listing_.integers(), [](const Listing& l) { return l.integers(); }, integer_slot_, integer_padded_);
  assign(listing_.reals(), [](const Listing& l) { return l.reals(); }, real_slot_, real_padded_);
  is_size_.resize(integer_padded_.size());
  for (const Listing::Item& item : listing_.items()) {
    size_t at = item.integers;
    const size_t end = at + [&] {
      size_t count = 0;
      for (const Type& type : item.node->results) count += type.dims.size();
      return count + (item.isolated ? item.integer_places.size() : 0);
    }();
    for (; at < end; ++at) {
      if (integer_slot_[at] < 0) continue;
      if (item.isolated) throw NotPadded(item.node->name + ": a size inside of a combining function");
      is_size_[static_cast<size_t>(integer_slot_[at])] = true;
    }
    if (item.isolated) {
      for (size_t k = 0; k < item.real_places.size(); ++k) {
        if (real_slot_[item.reals + k] >= 0)
          throw NotPadded(item.node->name + ": a number that depends on a size inside of a combining function");
      }
    }
  }
  // A try on a graph that is thrown away: it refuses what has no rule, and notes the rules' conditions.
  Graph scratch;
  Values arguments;
  for (Value v : graph_->body().arguments()) {
    arguments.push_back(scratch.parameter(varies(v) ? Type{v.dtype(), {v.numel()}} : v.type()));
  }
  const Value integers = scratch.parameter({DType::S64, {static_cast<int64_t>(integer_slots())}});
  const Value reals = scratch.parameter({DType::F64, {static_cast<int64_t>(real_slots())}});
  Padder(*this, scratch, integers, reals, &conditions_).run(arguments);
}

bool PaddedGraph::varies(const Value& v) const {
  size_t at = listing_.item(*v.node()).integers;
  for (int i = 0; i < v.index(); ++i) at += v.node()->results[static_cast<size_t>(i)].dims.size();
  for (size_t d = 0; d < v.dims().size(); ++d) {
    if (integer_slot_[at + d] >= 0) return true;
  }
  return false;
}

Slots PaddedGraph::numbers(const Graph& exact) const {
  const Listing other(exact);
  if (std::string why = listing_.difference(other); !why.empty()) throw NotPadded(why);
  Slots out{std::vector<int64_t>(integer_slots()), std::vector<double>(real_slots())};
  const auto fill = [&](const auto& own, const auto& given, const std::vector<int>& slot_of, auto& values) {
    std::vector<bool> filled(values.size());
    for (size_t i = 0; i < own.size(); ++i) {
      if (slot_of[i] < 0) {
        if (std::memcmp(&own[i], &given[i], sizeof own[i]) != 0)
          throw NotPadded("a number that was " + std::to_string(own[i]) + " became " + std::to_string(given[i]));
        continue;
      }
      const auto slot = static_cast<size_t>(slot_of[i]);
      if (filled[slot] && std::memcmp(&values[slot], &given[i], sizeof given[i]) != 0)
        throw NotPadded("numbers that were equal became " + std::to_string(values[slot]) + " and " +
                        std::to_string(given[i]));
      values[slot] = given[i];
      filled[slot] = true;
    }
  };
  fill(listing_.integers(), other.integers(), integer_slot_, out.integers);
  fill(listing_.reals(), other.reals(), real_slot_, out.reals);
  for (size_t i = 0; i < out.integers.size(); ++i) {
    if (is_size_[i] && (out.integers[i] < 0 || out.integers[i] > integer_padded_[i]))
      throw NotPadded("a size of " + std::to_string(out.integers[i]) + " in a graph for " +
                      std::to_string(integer_padded_[i]));
  }
  for (const auto& [holds, what] : conditions_) {
    if (!holds(out.integers)) throw NotPadded(what);
  }
  return out;
}

Values PaddedGraph::emit(Graph& into, const Values& arguments, Value integers, Value reals) const {
  return Padder(*this, into, integers, reals, nullptr).run(arguments);
}

}  // namespace tpu::hlo
