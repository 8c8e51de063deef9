// SPDX-License-Identifier: Apache-2.0
#include "hlo/graph.h"

#include <unordered_set>

#include "base/error.h"
#include "hlo/numbering.h"

namespace tpu::hlo {

const Type& Value::type() const { return node_->results[static_cast<size_t>(index_)]; }
Region& Value::region() const { return *node_->parent; }
Graph& Value::graph() const { return node_->parent->graph(); }

Value Region::add_argument(Type type) {
  Node& node = nodes_.emplace_back();
  node.results.push_back(std::move(type));
  node.parent = this;
  node.id = static_cast<int>(nodes_.size()) - 1;
  return arguments_.emplace_back(&node, 0);
}

void Region::require_visible(Value v, std::string_view what) const {
  TPU_CHECK(v.node() != nullptr, what, ": empty value");
  const Region* home = &v.region();
  const Region* around = this;
  for (; around != nullptr && around != home; around = around->parent_) {
    TPU_CHECK(!around->isolated_ || &v.graph() != graph_, what, ": a combining or comparing function uses ",
              to_string(v.type()), " from outside; it may use only its arguments and constants made inside");
  }
  TPU_CHECK(around != nullptr, what, ": ", to_string(v.type()),
            " belongs to another graph, or to a region that does not enclose the operation");
}

Node* Region::append(std::string name, Values operands, std::vector<Type> results, std::string attributes,
                     std::vector<Region*> regions) {
  for (Value v : operands) require_visible(v, name);
  Node& node = nodes_.emplace_back();
  node.name = std::move(name);
  node.operands = std::move(operands);
  node.results = std::move(results);
  node.attributes = std::move(attributes);
  node.regions = std::move(regions);
  node.parent = this;
  node.origin = graph_->origin();
  node.id = static_cast<int>(nodes_.size()) - 1;
  return &node;
}

Graph::Graph() : body_(this, nullptr), current_(&body_) {}

void Graph::set_origin(std::string text) {
  if (origins_.empty() || origins_.back() != text) origins_.push_back(std::move(text));
  origin_ = static_cast<int>(origins_.size()) - 1;
}

Region* Graph::region(const std::vector<Type>& arguments, const std::function<Values(const Values&)>& build,
                      bool isolated) {
  struct Restore {  // also when `build` throws
    Region*& current;
    Region* outer;
    ~Restore() { current = outer; }
  } restore{current_, current_};
  Region& region = regions_.emplace_back(this, current_, isolated);
  current_ = &region;
  for (const Type& type : arguments) region.add_argument(type);
  region.set_results(build(region.arguments()));
  for (Value v : region.results()) region.require_visible(v, "the result of a region");
  return &region;
}

std::vector<bool> Graph::used_parameters() const {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> todo;
  const auto visit = [&](Value v) {
    if (seen.insert(v.node()).second) todo.push_back(v.node());
  };
  for (Value v : body_.results()) visit(v);
  while (!todo.empty()) {
    const Node* node = todo.back();
    todo.pop_back();
    for (Value v : node->operands) visit(v);
    for (const Region* region : node->regions) {
      for (Value v : region->results()) visit(v);
    }
  }
  std::vector<bool> used;
  for (Value v : body_.arguments()) used.push_back(seen.contains(v.node()));
  return used;
}

void Graph::drop_parameters(const std::vector<bool>& used) {
  Values kept;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) kept.push_back(body_.arguments()[i]);
  }
  body_.set_arguments(std::move(kept));
}

void Graph::alias(int input, int output) { aliases_.emplace_back(input, output); }

Numbering::Numbering(const Graph& graph) : body_(&graph.body()) {
  mark(*body_);
  number_nodes(*body_);
}

// One pass from the end: operands always stand before their users, here or in a region around.
void Numbering::mark(const Region& region) {
  if (&region != body_) of_nested_.emplace(&region, std::vector<int>());
  std::vector<int>& own = slots(&region);
  own.assign(region.nodes().size(), kDead);
  for (Value v : region.arguments()) own[static_cast<size_t>(v.node()->id)] = kLive;
  for (Value v : region.results()) slots(&v.region())[static_cast<size_t>(v.node()->id)] = kLive;
  for (auto node = region.nodes().rbegin(); node != region.nodes().rend(); ++node) {
    int& state = slots(&region)[static_cast<size_t>(node->id)];
    if (state == kDead && node->attributes.find("has_side_effect = true") != std::string::npos) state = kLive;
    if (state == kDead) continue;
    for (Value v : node->operands) slots(&v.region())[static_cast<size_t>(v.node()->id)] = kLive;
    for (const Region* nested : node->regions) mark(*nested);
  }
}

void Numbering::number_nodes(const Region& region) {
  if (&region != body_) {
    for (Value v : region.arguments()) slots(&region)[static_cast<size_t>(v.node()->id)] = next_++;
  } else {
    int position = 0;
    for (Value v : region.arguments()) of_body_[static_cast<size_t>(v.node()->id)] = position++;
  }
  for (const Node& node : region.nodes()) {
    if (node.name.empty()) continue;
    int& slot = slots(&region)[static_cast<size_t>(node.id)];
    if (slot == kDead) continue;
    slot = next_++;
    for (const Region* nested : node.regions) number_nodes(*nested);
  }
}

namespace {

void add_type(Hash128& hash, const Type& type) {
  hash.add(static_cast<uint64_t>(type.dtype) << 32 | static_cast<uint64_t>(type.dims.size()));
  for (int64_t d : type.dims) hash.add(static_cast<uint64_t>(d));
}

void add_value(Hash128& hash, const Numbering& numbering, Value v, const Region* body) {
  const bool parameter = v.node()->name.empty() && v.node()->parent == body;
  hash.add(static_cast<uint64_t>(numbering.number(*v.node())) << 32 | static_cast<uint64_t>(v.index()) << 1 |
           static_cast<uint64_t>(parameter));
}

void add_region(Hash128& hash, const Numbering& numbering, const Region& region, const Region* body) {
  hash.add(region.arguments().size());
  for (Value v : region.arguments()) add_type(hash, v.type());
  for (const Node& node : region.nodes()) {
    if (node.name.empty() || !numbering.live(node)) continue;
    hash.add(node.name);
    hash.add(node.attributes);
    hash.add(static_cast<uint64_t>(node.operands.size()) << 32 | static_cast<uint64_t>(node.results.size()) << 16 |
             static_cast<uint64_t>(node.regions.size()));
    for (Value v : node.operands) add_value(hash, numbering, v, body);
    for (const Type& type : node.results) add_type(hash, type);
    for (const Region* nested : node.regions) add_region(hash, numbering, *nested, body);
  }
  hash.add(std::string_view("return"));
  hash.add(region.results().size());
  for (Value v : region.results()) add_value(hash, numbering, v, body);
}

}  // namespace

Hash128 Graph::hash() const {
  const Numbering numbering(*this);
  Hash128 hash;
  add_region(hash, numbering, body_, &body_);
  for (auto [input, output] : aliases_) {
    hash.add(static_cast<uint64_t>(input) << 32 | static_cast<uint64_t>(output));
  }
  return hash;
}

}  // namespace tpu::hlo
