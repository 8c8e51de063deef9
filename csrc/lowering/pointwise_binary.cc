// SPDX-License-Identifier: Apache-2.0
// Arithmetic of two and three operands.
#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

// Arithmetic in the common dtype of two operands, where a lone number keeps its precision.
Value arithmetic(Value x, Value y, bool floating, const std::function<Value(Value, Value)>& f) {
  DType t = common_dtype({x, y});
  if (floating) t = int_to_float(t);
  return convert(f(unrounded_operand(x, t), unrounded_operand(y, t)), t);
}

// alpha * y. Times zero stays a product: NaN and infinity show through.
Value scaled(Value y, const Scale& alpha) {
  if (alpha.one) return y;
  return alpha.zero ? y * 0 : y * convert(alpha.value, y.dtype());
}

// The remainder with the sign of the divisor.
Value python_mod(Value a, Value b) {
  Value r = a % b;
  const DType t = a.dtype();
  if (is_integer(t) && !is_signed_integer(t)) return r;
  return where(ne(r, 0) & ne(lt(r, 0), lt(b, 0)), r + b, r);
}

Value truncated_quotient(Value a, Value b) {
  Value q = a / b;
  return is_floating(q.dtype()) ? where(lt(q, 0), ceil(q), floor(q)) : q;
}

// floor(a / b), from the remainder so that rounding of the quotient can't carry it to the next
// whole number; as Python's float floor division.
Value floored_quotient(Value a, Value b) {
  const DType t = a.dtype();
  if (is_integer(t)) {
    Value q = a / b;
    if (!is_signed_integer(t)) return q;
    return where(ne(a % b, 0) & ne(lt(a, 0), lt(b, 0)), q - 1, q);
  }
  Value mod = a % b;
  Value div = (a - mod) / b;
  div = where(ne(mod, 0) & ne(lt(b, 0), lt(mod, 0)), div - 1, div);
  Value whole = floor(div);
  whole = where(gt(div - whole, 0.5), whole + 1, whole);
  Value quotient = a / b;
  Value zero = where(lt(quotient, 0), like(quotient, -0.0), like(quotient, 0.0));
  return where(eq(b, 0), quotient, where(ne(div, 0), whole, zero));
}

Value divide_by_mode(Value x, Value y, const std::optional<std::string>& mode) {
  if (!mode) return arithmetic(x, y, true, [](Value a, Value b) { return a / b; });
  TPU_CHECK(*mode == "trunc" || *mode == "floor",
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", *mode, "'");
  return arithmetic(x, y, false, *mode == "trunc" ? truncated_quotient : floored_quotient);
}

}  // namespace

TPU_LOWER("add.Tensor", [](Value x, Value y, Scale alpha) {
  return arithmetic(x, y, false, [&](Value a, Value b) { return a + scaled(b, alpha); });
}, {.host_scalars = true});

TPU_LOWER("sub.Tensor", [](Value x, Value y, Scale alpha) {
  return arithmetic(x, y, false, [&](Value a, Value b) { return a - scaled(b, alpha); });
}, {.host_scalars = true});

TPU_LOWER("rsub.Tensor", [](Value x, Value y, Scale alpha) {
  return arithmetic(x, y, false, [&](Value a, Value b) { return b - scaled(a, alpha); });
}, {.host_scalars = true});

TPU_LOWER("mul.Tensor", [](Value x, Value y) {
  return arithmetic(x, y, false, [](Value a, Value b) { return a * b; });
}, {.host_scalars = true});

TPU_LOWER("div.Tensor", [](Value x, Value y) { return divide_by_mode(x, y, std::nullopt); }, {.host_scalars = true});
TPU_LOWER("div.Tensor_mode", divide_by_mode, {.host_scalars = true});
TPU_LOWER("floor_divide", [](Value x, Value y) { return divide_by_mode(x, y, "floor"); }, {.host_scalars = true});

// The sign of the divisor; fmod: of the dividend.
TPU_LOWER({"remainder.Tensor", "remainder.Scalar_Tensor"},
          [](Value x, Value y) { return arithmetic(x, y, false, python_mod); }, {.host_scalars = true});
TPU_LOWER("fmod.Tensor", [](Value x, Value y) {
  return arithmetic(x, y, false, [](Value a, Value b) { return a % b; });
}, {.host_scalars = true});

// self + value t1 t2,  self + value t1 / t2
TPU_LOWER("addcmul", [](Value self, Value t1, Value t2, Scale value) {
  return pointwise(Rule::Same, {self, t1, t2}, [&](const Values& v) { return v[0] + scaled(v[1], value) * v[2]; });
}, {.host_scalars = true});

TPU_LOWER("addcdiv", [](Value self, Value t1, Value t2, Scale value) {
  return pointwise(Rule::Same, {self, t1, t2}, [&](const Values& v) { return v[0] + scaled(v[1] / v[2], value); });
}, {.host_scalars = true});

// self + weight (end - self), from whichever end is nearer
TPU_LOWER({"lerp.Tensor", "lerp.Scalar"}, [](Value self, Value end, Value weight) {
  const DType t = common_dtype({self, end});
  Value a = operand(self, t), b = operand(end, t), w = is_weak(weight) ? convert(weight, a.dtype()) : operand(weight, t);
  Value d = b - a;
  return convert(where(lt(abs(w), 0.5), a + w * d, b - d * (1 - w)), t);
}, {.host_scalars = true});

}  // namespace tpu::lowering
