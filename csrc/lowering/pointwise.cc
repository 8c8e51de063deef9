// SPDX-License-Identifier: Apache-2.0
// Unary maths.
#include "lowering/pointwise.h"

#include <cmath>
#include <numbers>

namespace tpu::lowering {

Value operand(Value v, DType t) { return convert(convert(v, t), compute_dtype(t)); }

Value unrounded_operand(Value v, DType t) { return v.rank() == 0 ? convert(v, compute_dtype(t)) : operand(v, t); }

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
      return pointwise(row.rule, {x}, [&](const Values& v) { return row.f(v[0]); });
    });
  }
}

BinaryTable::BinaryTable(const char* file, int line, std::initializer_list<BinaryRow> rows) {
  for (const BinaryRow& row : rows) {
    const auto body = [rule = row.rule, f = row.f](Value x, Value y) {
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
Value of_floats(Value x) { return is_real_floating(x) ? f(x) : x; }

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

Value is_nan_of(Value x) {
  return is_floating(x.dtype()) || is_complex(x.dtype()) ? is_nan(x) : full(x.graph(), {PRED, x.dims()}, false);
}

}  // namespace

TPU_LOWER_UNARY({
    {"abs", Rule::Raw, absolute},
    {"neg", Rule::Raw, negative},
    {"sign", Rule::Raw, sign_of},
    {"sgn", Rule::Raw, sign_of},
    {"ceil", Rule::Raw, of_floats<ceil>},
    {"floor", Rule::Raw, of_floats<floor>},
    {"trunc", Rule::Raw, of_floats<trunc>},
    {"round", Rule::Raw, of_floats<round_nearest_even>},
    {"frac", Rule::Same, fraction},
    {"isnan", Rule::Test, is_nan_of},

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

}  // namespace tpu::lowering
