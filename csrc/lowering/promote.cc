// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

#include <algorithm>
#include <cmath>

namespace tpu::lowering {
namespace {

// Bool < integer < float < complex.
int category(DType t) {
  if (is_complex(t)) return 3;
  if (is_floating(t)) return 2;
  return t == PRED ? 0 : 1;
}

DType signed_of_width(int bytes) { return bytes == 1 ? S8 : bytes == 2 ? S16 : bytes == 4 ? S32 : S64; }

}  // namespace

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  const int ca = category(a), cb = category(b);
  if (ca < cb) return promote_types(b, a);
  if (ca == 3) {
    const bool wide = a == C128 || b == C128 || b == F64;
    return wide ? C128 : C64;
  }
  if (ca == 2) {
    if (cb < 2) return a;
    if (a == F64 || b == F64) return F64;
    if (a == F32 || b == F32) return F32;
    const bool f8a = byte_size(a) == 1, f8b = byte_size(b) == 1;
    TPU_CHECK(!(f8a || f8b), "Promotion for Float8 Types is not supported, attempted to promote ", short_name(a),
              " and ", short_name(b));
    return F32;  // F16 with BF16
  }
  if (cb == 0) return a;
  const bool sa = is_signed_integer(a), sb = is_signed_integer(b);
  const int wa = byte_size(a), wb = byte_size(b);
  if (sa == sb) return wa >= wb ? a : b;
  const int unsigned_width = sa ? wb : wa, signed_width = sa ? wa : wb;
  if (signed_width > unsigned_width) return signed_of_width(signed_width);
  return signed_of_width(std::min(8, unsigned_width * 2));
}

DType number_dtype(const Literal& number) {
  switch (number.kind()) {
    case Literal::Kind::Bool: return PRED;
    case Literal::Kind::Float: return call().default_dtype;
    case Literal::Kind::Complex: return complex_of(compute_dtype(call().default_dtype));
    default: return S64;
  }
}

DType common_dtype(const std::vector<Value>& operands, std::optional<Literal> number) {
  std::optional<DType> level[3];  // with dimensions, rank 0, Python numbers
  const auto add = [&](size_t at, DType t) { level[at] = level[at] ? promote_types(*level[at], t) : t; };
  for (Value v : operands) {
    const DType t = v.dtype();
    if (!is_weak(v))
      add(v.rank() == 0 ? 1 : 0, t);
    else
      add(2, is_complex(t)    ? complex_of(compute_dtype(call().default_dtype))
             : is_floating(t) ? call().default_dtype
                              : t);  // whatever width it was uploaded in
  }
  if (number) add(2, number_dtype(*number));
  std::optional<DType> result;
  for (const auto& t : level) {
    if (!t) continue;
    if (!result)
      result = t;
    else if (category(*t) <= category(*result))
      continue;
    else if (is_floating(*result))
      result = promote_types(*result, C64);  // *t is complex: the float's width stays
    else
      result = t;
  }
  TPU_INTERNAL(result.has_value(), "no operand to take a dtype from");
  return *result;
}

DType compute_dtype(DType t) { return is_floating(t) && byte_size(t) <= 2 ? F32 : t; }

Value accumulate(Value x) { return convert(x, compute_dtype(x.dtype())); }

Value cast(Value x, DType t) {
  if (x.dtype() == t) return x;
  if (is_complex(x.dtype()) && !is_complex(t) && t != PRED) x = real(x);
  if (is_floating(x.dtype()) && is_integer(t)) {
    // XLA saturates; CPU PyTorch goes through a wide integer and wraps.
    if (byte_size(t) < 8 && (byte_size(t) < 4 || !is_signed_integer(t))) return convert(convert(x, S64), t);
  }
  return convert(x, t);
}

void check_fits(DType t, const std::vector<Literal>& numbers) {
  for (const Literal& number : numbers) {
    TPU_CHECK(is_complex(t) || number.number().imag() == 0, "value cannot be converted to type ", torch_name(t),
              " without overflow");
  }
  struct Range {
    DType dtype;
    double low, high;
    const char* name;
  };
  static constexpr Range kRanges[] = {
      {S8, -128, 127, "int8_t"},
      {U8, -255, 255, "uint8_t"},
      {S16, -32768, 32767, "int16_t"},
      {U16, -65535, 65535, "uint16_t"},
      {S32, -0x1p31, 0x1p31 - 1, "int"},
      {U32, -0x1p32 + 1, 0x1p32 - 1, "uint32_t"},
      {S64, -0x1p63, 0x1p63, "int64_t"},
      {F16, -65504, 65504, "at::Half"},
      {F32, -0x1.fffffep127, 0x1.fffffep127, "float"},
  };
  for (const Range& range : kRanges) {
    if (range.dtype != t) continue;
    for (const Literal& number : numbers) {
      const double v = number.number().real();
      const bool special = is_floating(t) && !std::isfinite(v);
      TPU_CHECK(special || (v >= range.low && v <= range.high), "value cannot be converted to type ", range.name,
                " without overflow");
    }
  }
}

DType int_to_float(DType t) { return t == PRED || is_integer(t) ? call().default_dtype : t; }

const char* torch_name(DType t) {
  switch (t) {
    case PRED: return "Bool";
    case S8: return "Char";
    case U8: return "Byte";
    case S16: return "Short";
    case S32: return "Int";
    case S64: return "Long";
    case U16: return "UInt16";
    case U32: return "UInt32";
    case U64: return "UInt64";
    case F16: return "Half";
    case BF16: return "BFloat16";
    case F32: return "Float";
    case F64: return "Double";
    case C64: return "ComplexFloat";
    case C128: return "ComplexDouble";
    default: return short_name(t);
  }
}

}  // namespace tpu::lowering
