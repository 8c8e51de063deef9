// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hlo/padded.h"

namespace tpu::hlo {

// Rewrites one padded graph into another graph: a rule for each operation. See PaddedGraph.
class Padder {
 public:
  using Conditions = std::vector<std::pair<PaddedGraph::Condition, std::string>>;
  // `conditions`, where given, gets what must hold of the slots for the rules to be right.
  Padder(const PaddedGraph& padded, Graph& into, Value integers, Value reals, Conditions* conditions);
  Values run(const Values& arguments);

 private:
  using Numbers = std::vector<Number>;
  using Rule = Values (Padder::*)(const Node&);
  static const std::unordered_map<std::string, Rule>& rules();

  // What is known of the traced graph's numbers.
  Numbers sizes(const Value& traced) const;
  Numbers attribute(const Node& node, const std::string& name) const;                  // none if it isn't there
  Dims fixed(const Node& node, const std::string& name) const;                         // NotPadded if one varies
  void only_varies(const Node& node, std::initializer_list<const char*> names) const;  // else NotPadded
  bool plain(const Node& node) const;                                                  // nothing in it varies
  void require(const Node& node, const char* what, PaddedGraph::Condition condition);

  static int64_t value_of(const Number& n, const std::vector<int64_t>& slots) {
    return n.varies() ? slots[static_cast<size_t>(n.slot)] : n.padded;
  }

  // Making the new graph.
  static Value as(Value v, DType t);
  Value number(const Number& n);  // rank-0 S64
  Value mapped(const Value& traced) const;
  Values copy(const Region& region);
  Values copy_node(const Node& node, Values operands, std::string attributes = {});
  Value inside(const Dims& shape, const Numbers& sizes, const Dims& which);  // PRED: the elements that count
  Value hidden(Value v, const Numbers& sizes, const Dims& which, Value fill);
  Value hidden(Value v, const Numbers& sizes, Value fill);
  Value shifted(Value v, int64_t dim, Value start, int64_t span);  // v[start : start + span], what is beyond: anything
  Value regrouped(Value v, const Numbers& from, const Numbers& to);
  Value pack(Value v, const Numbers& sizes);
  Value unpack(Value flat, const Numbers& sizes);
  Value clamped_start(Value start, const Number& size, const Number& window);

  Values same(const Node& node);
  Values constant(const Node& node);
  Values broadcast(const Node& node);
  Values reverse(const Node& node);
  Values slice(const Node& node);
  Values pad(const Node& node);
  Values concatenate(const Node& node);
  Values reshape(const Node& node);
  Values reduce(const Node& node);
  Values reduce_window(const Node& node);
  Values dot(const Node& node);
  Values convolution(const Node& node);
  Values gather(const Node& node);
  Values scatter(const Node& node);
  Values sort(const Node& node);
  Values top_k(const Node& node);
  Values dynamic_slice(const Node& node);
  Values dynamic_update_slice(const Node& node);
  Values control(const Node& node);

  const PaddedGraph& padded_;
  Graph& graph_;
  Values integers_, reals_;  // a rank-0 value for each slot
  Conditions* conditions_;
  std::unordered_map<const Node*, Values> map_;
};

}  // namespace tpu::hlo
