// SPDX-License-Identifier: Apache-2.0
#include "hlo/build.h"

namespace tpu::hlo::build {

Node* emit_node(Graph& graph, std::string_view op, Values operands, std::vector<Type> results, std::string attributes,
                std::vector<Region*> regions) {
  std::string name = op.starts_with("chlo.") ? std::string(op) : "stablehlo." + std::string(op);
  return graph.current().append(std::move(name), std::move(operands), std::move(results), std::move(attributes),
                                std::move(regions));
}

Value emit(std::string_view op, Values operands, Type result, std::string attributes, std::vector<Region*> regions) {
  Graph& graph = operands.at(0).graph();
  return {emit_node(graph, op, std::move(operands), {std::move(result)}, std::move(attributes), std::move(regions)), 0};
}

Values emit_many(std::string_view op, Values operands, std::vector<Type> results, std::string attributes,
                 std::vector<Region*> regions) {
  Graph& graph = operands.at(0).graph();
  Node* node = emit_node(graph, op, std::move(operands), std::move(results), std::move(attributes), std::move(regions));
  Values out;
  for (size_t i = 0; i < node->results.size(); ++i) out.emplace_back(node, static_cast<int>(i));
  return out;
}

namespace {
unsigned family(DType t) {
  if (t == DType::PRED) return kPred;
  if (is_complex(t)) return kComplex;
  if (is_floating(t)) return kFloat;
  return is_signed_integer(t) ? kSigned : kUnsigned;
}
std::string family_names(unsigned families) {
  std::string out;
  const auto add = [&](unsigned bits, const char* name) {
    if ((families & bits) != bits) return;
    families &= ~bits;
    if (!out.empty()) out += " or ";
    out += name;
  };
  add(kPred, "PRED");
  add(kInteger, "integer");
  add(kSigned, "signed integer");
  add(kUnsigned, "unsigned integer");
  add(kFloat, "float");
  add(kComplex, "complex");
  return out;
}
}  // namespace

void require(std::string_view op, Value x, unsigned families) {
  TPU_CHECK(x.node() != nullptr, op, ": empty value");
  TPU_CHECK(family(x.dtype()) & families, op, ": needs ", family_names(families), ", got ", to_string(x.type()));
}

void require_same_dtype(std::string_view op, Value x, Value y) {
  TPU_CHECK(x.node() != nullptr && y.node() != nullptr, op, ": empty value");
  TPU_CHECK(x.dtype() == y.dtype(), op, ": dtypes differ: ", to_string(x.type()), " and ", to_string(y.type()));
}

void require_same_type(std::string_view op, Value x, Value y) {
  require_same_dtype(op, x, y);
  TPU_CHECK(x.dims() == y.dims(), op, ": shapes differ: ", to_string(x.type()), " and ", to_string(y.type()));
}

void require_dim(std::string_view op, int64_t dim, int64_t rank) {
  TPU_CHECK(dim >= 0 && dim < rank, op, ": dimension ", dim, " is out of range for rank ", rank);
}

void require_scalar(std::string_view op, Value x, std::string_view what) {
  TPU_CHECK(x.node() != nullptr, op, ": empty value");
  TPU_CHECK(x.rank() == 0, op, ": ", what, " must be a scalar, got ", to_string(x.type()));
}

void require_dims(std::string_view op, std::string_view what, const Dims& dims, int64_t rank, bool sorted) {
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  int64_t last = -1;
  for (int64_t d : dims) {
    TPU_CHECK(d >= 0 && d < rank, op, ": ", what, " ", list(dims), " out of range for rank ", rank);
    TPU_CHECK(!seen[static_cast<size_t>(d)], op, ": ", what, " ", list(dims), " repeats ", d);
    TPU_CHECK(!sorted || d > last, op, ": ", what, " ", list(dims), " must be sorted");
    seen[static_cast<size_t>(d)] = true;
    last = d;
  }
}

void require_size(std::string_view op, std::string_view what, size_t size, int64_t wanted) {
  TPU_CHECK(static_cast<int64_t>(size) == wanted, op, ": ", what, " has ", size, " entries, expected ", wanted);
}

std::string list(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(dims[i]);
  }
  return out + ']';
}

std::string array(const Dims& dims) {
  if (dims.empty()) return "array<i64>";
  const std::string inner = list(dims);
  return "array<i64: " + inner.substr(1, inner.size() - 2) + '>';
}

std::string array(const std::vector<bool>& flags) {
  std::string out = "array<i1";
  for (size_t i = 0; i < flags.size(); ++i) {
    out += i == 0 ? ": " : ", ";
    out += flag(flags[i]);
  }
  return out + '>';
}

std::string pairs(const Padding& padding) {
  std::string out = "dense<";
  if (!padding.empty()) {
    out += '[';
    for (size_t i = 0; i < padding.size(); ++i) {
      if (i != 0) out += ", ";
      out += list({padding[i].first, padding[i].second});
    }
    out += ']';
  }
  return out + "> : tensor<" + std::to_string(padding.size()) + "x2xi64>";
}

std::string flag(bool v) { return v ? "true" : "false"; }

std::string quote(std::string_view s) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (char c : s) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || byte < 0x20 || byte >= 0x7F) {
      out += '\\';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string precision_config(Precision p) {
  static constexpr const char* kNames[] = {"DEFAULT", "HIGH", "HIGHEST"};
  const std::string one = std::string("#stablehlo<precision ") + kNames[static_cast<int>(p)] + '>';
  return "precision_config = [" + one + ", " + one + ']';
}

Dims ones_if_empty(const Dims& dims, int64_t rank) { return dims.empty() ? Dims(static_cast<size_t>(rank), 1) : dims; }
Padding zeros_if_empty(const Padding& padding, int64_t rank) {
  return padding.empty() ? Padding(static_cast<size_t>(rank), {0, 0}) : padding;
}

int64_t window_output(int64_t size, int64_t base_dilation, std::pair<int64_t, int64_t> padding, int64_t window,
                      int64_t window_dilation, int64_t stride) {
  const int64_t dilated = size == 0 ? 0 : (size - 1) * base_dilation + 1;
  const int64_t padded = dilated + padding.first + padding.second;
  const int64_t extent = window == 0 ? 0 : (window - 1) * window_dilation + 1;
  return padded <= 0 || extent > padded ? 0 : (padded - extent) / stride + 1;
}

Region* combine_region(std::string_view op, Graph& graph, const std::vector<Type>& scalars,
                       const CombineMany& combine) {
  std::vector<Type> arguments = scalars;
  arguments.insert(arguments.end(), scalars.begin(), scalars.end());
  Region* region = graph.region(
      arguments,
      [&](const Values& args) {
        const auto half = args.begin() + static_cast<std::ptrdiff_t>(scalars.size());
        return combine(Values(args.begin(), half), Values(half, args.end()));
      },
      true);
  require_size(op, "the region's result list", region->results().size(), static_cast<int64_t>(scalars.size()));
  for (size_t i = 0; i < scalars.size(); ++i) {
    TPU_CHECK(region->results()[i].type() == scalars[i], op, ": the region returns ",
              to_string(region->results()[i].type()), ", expected ", to_string(scalars[i]));
  }
  return region;
}

Region* combine_region(std::string_view op, Graph& graph, DType t, const Combine& combine, DType result) {
  Region* region =
      graph.region({{t, {}}, {t, {}}}, [&](const Values& args) { return Values{combine(args[0], args[1])}; }, true);
  TPU_CHECK(region->results()[0].type() == (Type{result, {}}), op, ": the region returns ",
            to_string(region->results()[0].type()), ", expected ", to_string(Type{result, {}}));
  return region;
}

CombineMany as_many(const Combine& combine) {
  return [&combine](const Values& lhs, const Values& rhs) { return Values{combine(lhs[0], rhs[0])}; };
}

std::vector<Type> types_of(const Values& values) {
  std::vector<Type> out;
  for (Value v : values) out.push_back(v.type());
  return out;
}

}  // namespace tpu::hlo::build
