// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "hlo/graph.h"
#include "hlo/numbering.h"

namespace tpu::hlo {

// Why a graph can't serve other sizes than its own.
struct NotPadded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A graph's live nodes in order, those of regions too, with every number that stands in them: the sizes of their
// results, then the numbers of their attributes. Two graphs of one function at two sizes differ in these alone.
class Listing {
 public:
  explicit Listing(const Graph& graph);

  struct Item {
    const Node* node;
    size_t integers, reals;              // where its own begin
    std::string skeleton;                // the attributes without their numbers
    std::vector<size_t> integer_places;  // where each stands in the attributes
    std::vector<size_t> real_places;
    bool isolated;  // inside of a combining or comparing function
  };
  const std::vector<Item>& items() const { return items_; }
  const std::vector<int64_t>& integers() const { return integers_; }
  const std::vector<double>& reals() const { return reals_; }
  const Item& item(const Node& node) const { return items_[at_.at(&node)]; }
  bool lists(const Node& node) const { return at_.contains(&node); }
  // The first thing in which the two differ other than by numbers; "" if in none.
  std::string difference(const Listing& other) const;
  const Graph& graph() const { return graph_; }

 private:
  void list(const Region& region, bool isolated);
  void read(Item& item);
  const Graph& graph_;
  Numbering live_;
  std::vector<Item> items_;
  std::unordered_map<const Node*, size_t> at_;
  std::vector<int64_t> integers_;
  std::vector<double> reals_;
};

// A number of a padded graph: `padded` where it was traced; known only when the program runs if it has a slot.
struct Number {
  int64_t padded = 0;
  int slot = -1;
  bool varies() const { return slot >= 0; }
};

// What the numbers of one size are, a value for each slot.
struct Slots {
  std::vector<int64_t> integers;
  std::vector<double> reals;
};

// A graph traced at a large size, rewritten so that it serves smaller ones. Every value has the large size; the
// elements that count are those whose indices are below the true sizes, the others may be anything. An operation that
// reads across them hides them first (padded_rules.cc has a rule for each operation, and refuses one without). The
// true sizes, and all other numbers that depend on them, are operands: found by tracing the same function at
// several sizes and comparing. Nothing is assumed of how they depend on each other.
//
// Invariants: `numbers()` accepts a size only if the exact graph of that size is this one but for numbers, and each
// number without a slot is equal. So what the program computes for it is what the exact graph says.
class PaddedGraph {
 public:
  // `samples`: exact graphs of the same function. Throws NotPadded.
  PaddedGraph(std::shared_ptr<const Graph> graph, const std::vector<const Graph*>& samples);

  // The operands for a size, from its exact graph. Throws NotPadded where this graph can't serve it.
  Slots numbers(const Graph& exact) const;

  // The rewritten graph's results, in `into`. Of parameters and results whose size varies the packed form: all elements
  // in order at the beginning of a vector as long as the padded size needs. `integers`: S64[n], `reals`: F64[m].
  Values emit(Graph& into, const Values& arguments, Value integers, Value reals) const;

  bool varies(const Value& v) const;  // whether some size of this value of the graph does
  size_t integer_slots() const { return integer_padded_.size(); }
  size_t real_slots() const { return real_padded_.size(); }

 private:
  friend class Padder;
  using Condition = std::function<bool(const std::vector<int64_t>&)>;
  std::shared_ptr<const Graph> graph_;
  Listing listing_;
  std::vector<int> integer_slot_, real_slot_;  // of each number of the listing; -1: the same at every size
  std::vector<int64_t> integer_padded_;        // of each slot
  std::vector<double> real_padded_;
  std::vector<bool> is_size_;  // slots that are the size of something
  std::vector<std::pair<Condition, std::string>> conditions_;
};

}  // namespace tpu::hlo
