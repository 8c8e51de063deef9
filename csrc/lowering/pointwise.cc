// SPDX-License-Identifier: Apache-2.0
// Unary maths.
#include "lowering/pointwise.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace tpu::lowering {

Value operand(Value v, DType t) { return convert(convert(v, t), compute_dtype(t)); }

Value unrounded_operand(Value v, DType t) { return v.rank() == 0 ? convert(v, compute_dtype(t)) : operand(v, t); }

void Refused::check(DType t) const {
  if (refuses == nullptr || !refuses(t)) return;
  fail(ErrorKind::NotImplemented, '"', kernel, "\" not implemented for '", torch_name(t), "'");
}

Value pointwise(Rule rule, const Values& operands, const std::function<Value(const Values&)>& f) {
  DType t = common_dtype(operands);
  if (rule == Rule::Float) t = int_to_float(t);
  const bool raw = rule == Rule::Raw || rule == Rule::Test;
  Values in;
  for (Value v : operands) in.push_back(raw ? convert(v, t) : operand(v, t));
  Value r = f(in);
  if (raw || r.dtype() == PRED) return r;
  // Complex operands may have a real result: abs, angle.
  return convert(r, is_complex(t) && !is_complex(r.dtype()) ? real_of(t) : t);
}

UnaryTable::UnaryTable(const char* file, int line, std::initializer_list<UnaryRow> rows) {
  for (const UnaryRow& row : rows) {
    Registrar(file, line, row.name, [row](Value x) {
      row.refused.check(x.dtype());
      return pointwise(row.rule, {x}, [&](const Values& v) { return row.f(v[0]); });
    });
  }
}

BinaryTable::BinaryTable(const char* file, int line, std::initializer_list<BinaryRow> rows) {
  for (const BinaryRow& row : rows) {
    const auto body = [rule = row.rule, f = row.f, refused = row.refused](Value x, Value y) {
      refused.check(common_dtype({x, y}));
      return pointwise(rule, {x, y}, [&](const Values& v) { return f(v[0], v[1]); });
    };
    for (const char* name : row.names) Registrar(file, line, name, body, {.host_scalars = true});
  }
}

namespace {

bool is_real_floating(Value x) { return is_floating(x.dtype()); }
bool is_number(Value x) { return x.dtype() != PRED; }

// Integers and PRED are whole and finite already.
template <Value (*f)(Value)>
Value of_floats(Value x) {
  return is_real_floating(x) ? f(x) : x;
}

Value absolute(Value x) {
  const DType t = x.dtype();
  return t == PRED || (is_integer(t) && !is_signed_integer(t)) ? x : abs(x);
}

// 0 of NaN and of both zeros; z / |z| of complex numbers.
Value sign_of(Value x) {
  if (x.dtype() == PRED) return x;
  if (is_complex(x.dtype())) return sign(x);
  return convert(gt(x, 0), x.dtype()) - convert(lt(x, 0), x.dtype());
}

Value negative(Value x) { return is_number(x) ? -x : x; }
Value trunc(Value x) { return where(lt(x, 0), ceil(x), floor(x)); }
Value fraction(Value x) { return x - trunc(x); }
Value exp2(Value x) { return is_complex(x.dtype()) ? exp(x * std::numbers::ln2) : pow(like(x, 2), x); }
Value log2(Value x) { return log(x) * std::numbers::log2e; }
Value log10(Value x) { return log(x) * std::numbers::log10e; }
Value reciprocal_of(Value x) { return 1 / x; }
Value sigmoid(Value x) { return is_complex(x.dtype()) ? 1 / (1 + exp(-x)) : logistic(x); }

// sin(pi x) / (pi x), 1 at 0
Value sinc(Value x) {
  Value y = x * std::numbers::pi;
  return where(eq(x, 0), like(x, 1), sin(y) / y);
}

// The sign bit: of -0 and of negative NaN too.
Value sign_bit(Value x) {
  const DType t = x.dtype();
  if (!is_floating(t)) return is_signed_integer(t) ? lt(x, 0) : full(x.graph(), {PRED, x.dims()}, false);
  static constexpr DType kBits[] = {S8, S8, S16, S32, S32, S32, S32, S32, S64};
  return lt(bitcast_convert(x, kBits[byte_size(t)]), 0);
}

Value is_infinity(Value x) {
  const DType t = x.dtype();
  if (is_complex(t)) return is_inf(real(x)) | is_inf(imag(x));
  return is_floating(t) ? is_inf(x) : full(x.graph(), {PRED, x.dims()}, false);
}
template <bool positive>
Value is_signed_infinity(Value x) {
  if (!is_floating(x.dtype())) return full(x.graph(), {PRED, x.dims()}, false);
  return eq(x, positive ? HUGE_VAL : -HUGE_VAL);
}

Value is_nan_of(Value x) {
  return is_floating(x.dtype()) || is_complex(x.dtype()) ? is_nan(x) : full(x.graph(), {PRED, x.dims()}, false);
}

double largest_finite(DType t) {
  switch (t) {
    case F16: return 65504.0;
    case BF16: return 0x1.FEp127;
    case F64: return std::numeric_limits<double>::max();
    default: return std::numeric_limits<float>::max();
  }
}

}  // namespace

TPU_LOWER_UNARY({
    {"abs", Rule::Raw, absolute},
    {"neg", Rule::Raw, negative},
    {"sign", Rule::Raw, sign_of},
    {"sgn", Rule::Raw, sign_of},
    {"ceil", Rule::Raw, of_floats<ceil>, {"ceil_vml_cpu", bool_or_complex}},
    {"floor", Rule::Raw, of_floats<floor>, {"floor_vml_cpu", bool_or_complex}},
    {"trunc", Rule::Raw, of_floats<trunc>, {"trunc_vml_cpu", bool_or_complex}},
    {"round", Rule::Raw, of_floats<round_nearest_even>, {"round_vml_cpu", bool_or_complex}},
    {"frac", Rule::Same, fraction},
    {"signbit", Rule::Test, sign_bit},
    {"isnan", Rule::Test, is_nan_of},
    {"isinf", Rule::Test, is_infinity},
    {"isposinf", Rule::Test, is_signed_infinity<true>},
    {"isneginf", Rule::Test, is_signed_infinity<false>},

    {"exp", Rule::Float, exponential},
    {"exp2", Rule::Float, exp2},
    {"expm1", Rule::Float, exponential_minus_one},
    {"log", Rule::Float, log},
    {"log2", Rule::Float, log2},
    {"log10", Rule::Float, log10},
    {"log1p", Rule::Float, log_plus_one},
    {"sqrt", Rule::Float, sqrt},
    {"rsqrt", Rule::Float, rsqrt},
    {"reciprocal", Rule::Float, reciprocal_of},
    {"sigmoid", Rule::Float, sigmoid},

    {"sinc", Rule::Float, sinc},
    {"sin", Rule::Float, sine},
    {"cos", Rule::Float, cosine},
    {"tan", Rule::Float, tan},
    {"asin", Rule::Float, asin},
    {"acos", Rule::Float, acos},
    {"atan", Rule::Float, atan},
    {"sinh", Rule::Float, sinh},
    {"cosh", Rule::Float, cosh},
    {"tanh", Rule::Float, tanh},
    {"asinh", Rule::Float, asinh},
    {"acosh", Rule::Float, acosh},
    {"atanh", Rule::Float, atanh},
});

// round(x 10^d) / 10^d, with the halves to even
TPU_LOWER("round.decimals", [](Value self, int64_t decimals) {
  if (!is_floating(self.dtype())) return self;
  return pointwise(Rule::Same, {self}, [&](const Values& v) {
    const double ten = std::pow(10.0, static_cast<double>(std::abs(decimals)));
    if (decimals == 0) return round_nearest_even(v[0]);
    return decimals > 0 ? round_nearest_even(v[0] * ten) / ten : round_nearest_even(v[0] / ten) * ten;
  });
});

// What replaces NaN, inf and -inf: 0 and the largest and smallest finite numbers unless said.
TPU_LOWER("nan_to_num", [](Value self, std::optional<Value> nan, std::optional<Value> high, std::optional<Value> low) {
  const DType t = self.dtype();
  if (!is_floating(t) && !is_complex(t)) return self;
  const auto replace = [&](Value x) {
    const auto given = [&](std::optional<Value> v, double otherwise) {
      return v ? broadcast_to(convert(*v, x.dtype()), x.dims()) : like(x, otherwise);
    };
    const double largest = largest_finite(x.dtype());
    Value r = where(is_nan(x), given(nan, 0), x);
    r = where(eq(x, HUGE_VAL), given(high, largest), r);
    return where(eq(x, -HUGE_VAL), given(low, -largest), r);
  };
  return is_complex(t) ? complex(replace(real(self)), replace(imag(self))) : replace(self);
});

}  // namespace tpu::lowering
