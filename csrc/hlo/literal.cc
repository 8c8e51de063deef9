// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>

#include "hlo/build.h"

// Constants as exact text: integers in decimal, finite floats as the shortest decimal that reads
// back the same, NaN and infinities as bit patterns.
namespace tpu::hlo {
using namespace build;
namespace {

struct Special {
  DType dtype;
  const char *nan, *inf, *minus_inf;  // no infinity in the format: null
};
constexpr Special kSpecials[] = {
    {DType::F16, "0x7E00", "0x7C00", "0xFC00"},
    {DType::BF16, "0x7FC0", "0x7F80", "0xFF80"},
    {DType::F32, "0x7FC00000", "0x7F800000", "0xFF800000"},
    {DType::F64, "0x7FF8000000000000", "0x7FF0000000000000", "0xFFF0000000000000"},
    {DType::F8E4M3FN, "0x7F", nullptr, nullptr},
    {DType::F8E5M2, "0x7E", "0x7C", "0xFC"},
    {DType::F8E4M3FNUZ, "0x80", nullptr, nullptr},
    {DType::F8E5M2FNUZ, "0x80", nullptr, nullptr},
};

std::string float_text(double v, DType t) {
  if (!std::isfinite(v)) {
    for (const Special& s : kSpecials) {
      if (s.dtype != t) continue;
      const char* bits = std::isnan(v) ? s.nan : v > 0 ? s.inf : s.minus_inf;
      return bits != nullptr ? bits : s.nan;  // as a conversion to the format does
    }
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
  std::string out(buffer, end);
  // MLIR wants a point in every float, before the exponent.
  if (out.find('.') == std::string::npos) {
    const size_t e = out.find('e');
    out.insert(e == std::string::npos ? out.size() : e, ".0");
  }
  return out;
}

std::string integer_text(const Literal& v, DType t) {
  if (!v.is_integer()) {
    const double real = v.number().real();
    TPU_CHECK(v.kind() == Literal::Kind::Float && real == std::trunc(real) && std::abs(real) < 0x1p63, "the number ",
              real, " is no integer that ", short_name(t), " can hold");
    return Literal(static_cast<int64_t>(real)).text(t);
  }
  const int width = t == DType::S4 || t == DType::U4 ? 4 : 8 * byte_size(t);
  const int64_t bits = v.bits();
  const bool large = v.kind() == Literal::Kind::Unsigned && bits < 0;  // 2^63 and more
  if (width == 64) {
    return is_signed_integer(t) ? std::to_string(bits) : std::to_string(static_cast<uint64_t>(bits));
  }
  // -1 as a mask of an unsigned type and 0xFF of a signed one are meant; more bits are a mistake.
  const int64_t range = int64_t{1} << width;
  TPU_CHECK(!large && bits >= -range / 2 && bits < range, "the number ",
            large ? std::to_string(static_cast<uint64_t>(bits)) : std::to_string(bits), " does not fit ",
            short_name(t));
  int64_t wrapped = bits & (range - 1);
  if (is_signed_integer(t) && wrapped >= range / 2) wrapped -= range;
  return std::to_string(wrapped);
}

std::string nested(const std::vector<std::string>& elements, const Dims& dims, size_t level, size_t& next) {
  if (level == dims.size()) return elements[next++];
  std::string out = "[";
  for (int64_t i = 0; i < dims[level]; ++i) {
    if (i != 0) out += ", ";
    out += nested(elements, dims, level + 1, next);
  }
  return out + ']';
}

Value emit_constant(Graph& graph, const Type& type, const std::string& dense) {
  return {emit_node(graph, "constant", {}, {type}, "value = dense<" + dense + "> : " + mlir_type(type)), 0};
}

template <class T>
Value array_constant(Graph& graph, const Type& type, const std::vector<T>& elements) {
  require_size("constant", to_string(type), elements.size(), type.numel());
  if (elements.empty()) return emit_constant(graph, type, "");
  std::vector<std::string> texts;
  bool splat = true;
  for (T v : elements) {
    texts.push_back(Literal(v).text(type.dtype));
    splat = splat && texts.back() == texts.front();
  }
  if (splat) return emit_constant(graph, type, texts.front());
  size_t next = 0;
  return emit_constant(graph, type, nested(texts, type.dims, 0, next));
}

}  // namespace

std::complex<double> Literal::number() const {
  if (!is_integer()) return float_;
  if (kind_ == Kind::Unsigned) return static_cast<double>(static_cast<uint64_t>(int_));
  return static_cast<double>(int_);
}

std::string Literal::text(DType t) const {
  if (t == DType::PRED) return number() != 0.0 ? "true" : "false";
  if (hlo::is_integer(t)) return integer_text(*this, t);
  const std::complex<double> v = number();
  if (is_complex(t)) return '(' + float_text(v.real(), real_of(t)) + ", " + float_text(v.imag(), real_of(t)) + ')';
  TPU_CHECK(kind_ != Kind::Complex, "a complex number cannot be a constant of ", short_name(t));
  return float_text(v.real(), t);
}

Value constant(Graph& graph, const Type& type, const Literal& splat) {
  return emit_constant(graph, type, type.numel() == 0 ? "" : splat.text(type.dtype));
}
Value constant(Graph& graph, const Type& type, const std::vector<int64_t>& elements) {
  return array_constant(graph, type, elements);
}
Value constant(Graph& graph, const Type& type, const std::vector<double>& elements) {
  return array_constant(graph, type, elements);
}

std::string_view splat_text(Value x) {
  const Node& node = *x.node();
  if (node.name != "stablehlo.constant") return {};
  constexpr std::string_view prefix = "value = dense<";
  std::string_view inner = std::string_view(node.attributes).substr(prefix.size());
  inner = inner.substr(0, inner.rfind("> : "));
  return inner.starts_with('[') ? std::string_view() : inner;
}

std::optional<int64_t> splat_integer(Value x) {
  const std::string_view text = splat_text(x);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace tpu::hlo
