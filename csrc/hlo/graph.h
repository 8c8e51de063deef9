// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "hlo/type.h"

namespace tpu::hlo {

class Graph;
class Region;
struct Node;

// One result of a node: a handle, valid as long as its graph. Copy freely.
class Value {
 public:
  Value() = default;
  Value(Node* node, int index) : node_(node), index_(index) {}
  explicit operator bool() const { return node_ != nullptr; }
  bool same(Value other) const { return node_ == other.node_ && index_ == other.index_; }

  const Type& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t rank() const { return type().rank(); }
  int64_t dim(int64_t i) const { return type().dims[static_cast<size_t>(i)]; }
  int64_t numel() const { return type().numel(); }
  Graph& graph() const;
  Region& region() const;  // the region (or the graph's body) that the node stands in
  Node* node() const { return node_; }
  int index() const { return index_; }

 private:
  Node* node_ = nullptr;
  int index_ = 0;
};
using Values = std::vector<Value>;

// One StableHLO operation. `attributes` is MLIR text ready to print between <{ and }>, canonical,
// so that equal operations have equal text and hash alike.
struct Node {
  std::string name;  // "stablehlo.add", "chlo.erf"; "" for a parameter or region argument
  Values operands;
  std::vector<Type> results;
  std::string attributes;  // "dimensions = array<i64: 0>"; may be empty
  std::vector<Region*> regions;
  Region* parent = nullptr;
  int origin = -1;   // what it came from: a place in Graph::origins()
  int id = -1;       // position in its region, arguments first
  double flops = 0;  // of a product of matrices or a convolution: two for each multiplication that counts
};

// Control flow: its regions may use values from outside.
inline bool has_open_regions(const Node& node) {
  return node.name == "stablehlo.while" || node.name == "stablehlo.if" || node.name == "stablehlo.case";
}

// The text between < and > of a splat constant; empty if x is anything else.
std::string_view splat_text(Value x);
// The number of a splat constant of integers.
std::optional<int64_t> splat_integer(Value x);

// A block: its arguments, its nodes in order, and what it returns.
class Region {
 public:
  Region(Graph* graph, Region* parent, bool isolated = false) : graph_(graph), parent_(parent), isolated_(isolated) {}
  Value add_argument(Type type);
  // Appends a node. Operands may stand in this region or, unless it is isolated, in one around it.
  Node* append(std::string name, Values operands, std::vector<Type> results, std::string attributes = {},
               std::vector<Region*> regions = {});
  void set_results(Values results) { results_ = std::move(results); }
  void set_arguments(Values arguments) { arguments_ = std::move(arguments); }
  const Values& arguments() const { return arguments_; }
  const Values& results() const { return results_; }
  const std::deque<Node>& nodes() const { return nodes_; }  // arguments included, in order
  Graph& graph() const { return *graph_; }
  Region* parent() const { return parent_; }
  // Throws unless `v` may be used here; `what` names the user.
  void require_visible(Value v, std::string_view what) const;

 private:
  Graph* graph_;
  Region* parent_;
  bool isolated_;
  std::deque<Node> nodes_;
  Values arguments_;
  Values results_;
};

// One program under construction: the body of `func.func public @main`. Not thread-safe; a graph
// belongs to the thread that builds it.
class Graph {
 public:
  Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Value parameter(Type type) { return body_.add_argument(std::move(type)); }
  void set_results(Values results) { body_.set_results(std::move(results)); }
  Region& body() { return body_; }
  const Region& body() const { return body_; }

  // The region that new nodes go to: the body, or the innermost one being built by `region()`.
  Region& current() { return *current_; }

  // Builds a nested region: its arguments have `arguments` types; `build` gets them as values and
  // returns the region's results. Nodes that `build` creates go to the new region. An isolated one
  // may not use values from outside: reduce, sort, scatter (XLA refuses); while, if, case may.
  Region* region(const std::vector<Type>& arguments, const std::function<Values(const Values&)>& build,
                 bool isolated = false);

  // Marks that result `output` may reuse the memory of parameter `input`.
  void alias(int input, int output);
  const std::vector<std::pair<int, int>>& aliases() const { return aliases_; }

  // Which parameters some result depends on.
  std::vector<bool> used_parameters() const;
  // Removes the parameters that are not used; call before alias().
  void drop_parameters(const std::vector<bool>& used);

  // Nodes made from now on say that they come from `text`: printed as their location. "": nothing.
  void set_origin(std::string text);
  const std::vector<std::string>& origins() const { return origins_; }
  int origin() const { return origin_; }

  // Structural hash: equal for graphs that print the same text.
  Hash128 hash() const;

 private:
  std::deque<Region> regions_;  // nested ones; stable addresses
  Region body_;
  Region* current_;
  std::vector<std::pair<int, int>> aliases_;
  std::vector<std::string> origins_;
  int origin_ = -1;
};

// The whole module as MLIR text in generic form, with `tf.aliasing_output` on aliased parameters.
// Nodes that no result needs are left out. `module_name` must be an identifier.
std::string print_mlir(const Graph& graph, std::string_view module_name);

// Short text for people, a line a node: "%3: f32[2,8] = exponential %2 {attributes}".
std::string print_short(const Graph& graph);

}  // namespace tpu::hlo
