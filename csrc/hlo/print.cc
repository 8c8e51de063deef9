// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "hlo/numbering.h"

namespace tpu::hlo {
namespace {

// Appends to one string: a graph of thousands of nodes is printed on the way to every compile.
class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), numbering_(graph) {}

  std::string mlir(std::string_view module_name) {
    out_ += "module @";
    out_ += module_name;
    out_ += " {\n  func.func public @main(";
    const Values& parameters = graph_.body().arguments();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (i != 0) out_ += ", ";
      argument(parameters[i]);
      for (auto [input, output] : graph_.aliases()) {
        if (input == static_cast<int>(i)) {
          out_ += " {tf.aliasing_output = " + std::to_string(output) + " : i32}";
          break;
        }
      }
    }
    out_ += ") -> ";
    types(graph_.body().results(), true);
    out_ += " {\n";
    nodes(graph_.body(), 4);
    out_ += "    \"func.return\"";
    ending(graph_.body().results());
    out_ += "  }\n}\n";
    return std::move(out_);
  }

  std::string brief() {
    for (Value v : graph_.body().arguments()) {
      name(v);
      out_ += ": " + to_string(v.type()) + "\n";
    }
    brief_nodes(graph_.body(), 0);
    return std::move(out_);
  }

 private:
  void name(const Node& node) {
    out_ += node.name.empty() && node.parent == &graph_.body() ? "%arg" : "%";
    out_ += std::to_string(numbering_.number(node));
  }
  void name(Value v) {
    name(*v.node());
    if (v.node()->results.size() > 1) out_ += '#' + std::to_string(v.index());
  }
  void names(const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i != 0) out_ += ", ";
      name(values[i]);
    }
  }
  void argument(Value v) {
    name(v);
    out_ += ": ";
    out_ += mlir_type(v.type());
  }
  void types(const Values& values, bool parentheses) {
    if (parentheses) out_ += '(';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i != 0) out_ += ", ";
      out_ += mlir_type(values[i].type());
    }
    if (parentheses) out_ += ')';
  }
  // What follows a terminator's name.
  void ending(const Values& results) {
    out_ += '(';
    names(results);
    out_ += ") : ";
    types(results, true);
    out_ += " -> ()\n";
  }

  void nodes(const Region& region, size_t indent) {
    for (const Node& node : region.nodes()) {
      if (node.name.empty() || !numbering_.live(node)) continue;
      out_.append(indent, ' ');
      if (!node.results.empty()) {
        name(node);
        if (node.results.size() > 1) out_ += ':' + std::to_string(node.results.size());
        out_ += " = ";
      }
      out_ += '"' + node.name + "\"(";
      names(node.operands);
      out_ += ')';
      if (!node.attributes.empty()) out_ += " <{" + node.attributes + "}>";
      if (!node.regions.empty()) {
        out_ += " (";
        for (size_t i = 0; i < node.regions.size(); ++i) {
          if (i != 0) out_ += ", ";
          nested(*node.regions[i], indent);
        }
        out_ += ')';
      }
      out_ += " : ";
      types(node.operands, true);
      out_ += " -> ";
      if (node.results.size() == 1) {
        out_ += mlir_type(node.results[0]);
      } else {
        out_ += '(';
        for (size_t i = 0; i < node.results.size(); ++i) {
          if (i != 0) out_ += ", ";
          out_ += mlir_type(node.results[i]);
        }
        out_ += ')';
      }
      location(node);
      out_ += '\n';
    }
  }
  void location(const Node& node) {
    if (node.origin < 0) return;
    const std::string& origin = graph_.origins()[static_cast<size_t>(node.origin)];
    if (origin.empty()) return;
    out_ += " loc(\"";
    for (char c : origin) {
      if (c == '"' || c == '\\') out_ += '\\';
      if (static_cast<unsigned char>(c) >= ' ') out_ += c;
    }
    out_ += "\")";
  }

  void nested(const Region& region, size_t indent) {
    out_ += "{\n";
    if (!region.arguments().empty()) {
      out_.append(indent, ' ');
      out_ += "^bb0(";
      for (size_t i = 0; i < region.arguments().size(); ++i) {
        if (i != 0) out_ += ", ";
        argument(region.arguments()[i]);
      }
      out_ += "):\n";
    }
    nodes(region, indent + 2);
    out_.append(indent + 2, ' ');
    out_ += "\"stablehlo.return\"";
    ending(region.results());
    out_.append(indent, ' ');
    out_ += '}';
  }

  void brief_nodes(const Region& region, size_t indent) {
    for (const Node& node : region.nodes()) {
      if (node.name.empty() || !numbering_.live(node)) continue;
      out_.append(indent, ' ');
      name(node);
      out_ += ": ";
      for (size_t i = 0; i < node.results.size(); ++i) {
        if (i != 0) out_ += ", ";
        out_ += to_string(node.results[i]);
      }
      const std::string_view full = node.name;
      out_ += " = ";
      out_ += full.starts_with("stablehlo.") ? full.substr(10) : full;
      if (!node.operands.empty()) out_ += ' ';
      names(node.operands);
      if (!node.attributes.empty()) out_ += " {" + node.attributes + '}';
      out_ += '\n';
      for (const Region* inner : node.regions) {
        out_.append(indent + 2, ' ');
        out_ += '(';
        names(inner->arguments());
        out_ += ")\n";
        brief_nodes(*inner, indent + 2);
      }
    }
    out_.append(indent, ' ');
    out_ += "return ";
    names(region.results());
    out_ += '\n';
  }

  const Graph& graph_;
  const Numbering numbering_;
  std::string out_;
};

}  // namespace

std::string print_mlir(const Graph& graph, std::string_view module_name) { return Printer(graph).mlir(module_name); }
std::string print_short(const Graph& graph) { return Printer(graph).brief(); }

}  // namespace tpu::hlo
