// SPDX-License-Identifier: Apache-2.0
#include "hlo/build.h"
#include "hlo/math.h"

namespace tpu::hlo {
using namespace build;
namespace {

constexpr unsigned kAnalytic = kFloat | kComplex;

Value unary(std::string_view op, Value x, unsigned families) {
  require(op, x, families);
  return emit(op, {x}, x.type());
}
Value binary(std::string_view op, Value x, Value y, unsigned families) {
  require(op, x, families);
  require_same_type(op, x, y);
  return emit(op, {x, y}, x.type());
}
Value test(std::string_view op, Value x) {
  require(op, x, kFloat);
  return emit(op, {x}, {DType::PRED, x.dims()});
}

}  // namespace

Value abs(Value x) {
  require("abs", x, kSigned | kAnalytic);
  return emit("abs", {x}, {real_of(x.dtype()), x.dims()});
}
Value add(Value x, Value y) { return binary("add", x, y, kAny); }
Value and_(Value x, Value y) { return binary("and", x, y, kPred | kInteger); }
Value cbrt(Value x) { return unary("cbrt", x, kFloat); }
Value ceil(Value x) { return unary("ceil", x, kFloat); }

Value clamp(Value low, Value x, Value high) {
  require("clamp", x, kPred | kInteger | kFloat);
  for (Value bound : {low, high}) {
    require_same_dtype("clamp", x, bound);
    TPU_CHECK(bound.rank() == 0 || bound.dims() == x.dims(), "clamp: a bound is ", to_string(bound.type()),
              ", neither a scalar nor as ", to_string(x.type()));
  }
  return emit("clamp", {low, x, high}, x.type());
}

Value compare(Value x, Value y, Direction direction, CompareType type) {
  static constexpr const char* kDirections[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  static constexpr const char* kTypes[] = {"FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"};
  require_same_type("compare", x, y);
  const char* name = kTypes[static_cast<int>(type)];
  switch (type) {
    case CompareType::FLOAT: require("compare FLOAT", x, kAnalytic); break;
    case CompareType::TOTALORDER: require("compare TOTALORDER", x, kFloat); break;
    case CompareType::SIGNED: require("compare SIGNED", x, kSigned); break;
    case CompareType::UNSIGNED: require("compare UNSIGNED", x, kUnsigned | kPred); break;
  }
  TPU_CHECK(!is_complex(x.dtype()) || direction == Direction::EQ || direction == Direction::NE,
            "compare: complex numbers have no order, got ", to_string(x.type()));
  return emit("compare", {x, y}, {DType::PRED, x.dims()},
              text("comparison_direction = #stablehlo<comparison_direction ", kDirections[static_cast<int>(direction)],
                   ">, compare_type = #stablehlo<comparison_type ", name, ">"));
}

Value complex(Value re, Value im) {
  require_same_type("complex", re, im);
  TPU_CHECK(re.dtype() == DType::F32 || re.dtype() == DType::F64, "complex: needs f32 or f64, got ",
            to_string(re.type()));
  return emit("complex", {re, im}, {complex_of(re.dtype()), re.dims()});
}

Value convert(Value x, DType t) {
  require("convert", x, kAny);
  if (x.dtype() == t) return x;
  if (t == DType::PRED) return ne(x, 0);  // NaN counts as true
  if (is_complex(x.dtype()) && !is_complex(t)) return convert(real(x), t);
  if (is_complex(t) && !is_complex(x.dtype())) {
    Value re = convert(x, real_of(t));
    return complex(re, zeros_like(re));
  }
  // As a conversion, XLA would turn its product with y into "y or 0", and NaN * 0 into 0.
  if (x.dtype() == DType::PRED && is_floating(t)) {
    const Type type{t, x.dims()};
    return select(x, constant(x.graph(), type, 1.0), constant(x.graph(), type, 0.0));
  }
  return emit("convert", {x}, {t, x.dims()});
}

Value cosine(Value x) { return unary("cosine", x, kAnalytic); }
Value count_leading_zeros(Value x) { return unary("count_leading_zeros", x, kInteger); }
Value divide(Value x, Value y) { return binary("divide", x, y, kNumber); }
Value exponential(Value x) { return unary("exponential", x, kAnalytic); }
Value exponential_minus_one(Value x) { return unary("exponential_minus_one", x, kAnalytic); }
Value floor(Value x) { return unary("floor", x, kFloat); }

Value imag(Value x) {
  require("imag", x, kAnalytic);
  if (!is_complex(x.dtype())) return zeros_like(x);
  return emit("imag", {x}, {real_of(x.dtype()), x.dims()});
}

Value is_finite(Value x) { return test("is_finite", x); }
Value log(Value x) { return unary("log", x, kAnalytic); }
Value log_plus_one(Value x) { return unary("log_plus_one", x, kAnalytic); }
Value logistic(Value x) { return unary("logistic", x, kAnalytic); }
Value multiply(Value x, Value y) { return binary("multiply", x, y, kAny); }
Value negate(Value x) { return unary("negate", x, kNumber); }
Value not_(Value x) { return unary("not", x, kPred | kInteger); }
Value or_(Value x, Value y) { return binary("or", x, y, kPred | kInteger); }
Value popcnt(Value x) { return unary("popcnt", x, kInteger); }
Value power(Value x, Value y) { return binary("power", x, y, kNumber); }

Value real(Value x) {
  require("real", x, kAnalytic);
  if (!is_complex(x.dtype())) return x;
  return emit("real", {x}, {real_of(x.dtype()), x.dims()});
}

Value reduce_precision(Value x, int exponent_bits, int mantissa_bits) {
  require("reduce_precision", x, kFloat);
  TPU_CHECK(exponent_bits >= 1 && mantissa_bits >= 0, "reduce_precision: ", exponent_bits, " exponent and ",
            mantissa_bits, " mantissa bits");
  return emit("reduce_precision", {x}, x.type(),
              text("exponent_bits = ", exponent_bits, " : i32, mantissa_bits = ", mantissa_bits, " : i32"));
}

Value remainder(Value x, Value y) { return binary("remainder", x, y, kInteger | kFloat); }
Value round_nearest_afz(Value x) { return unary("round_nearest_afz", x, kFloat); }
Value round_nearest_even(Value x) { return unary("round_nearest_even", x, kFloat); }
Value rsqrt(Value x) { return unary("rsqrt", x, kAnalytic); }

Value select(Value condition, Value on_true, Value on_false) {
  require("select", condition, kPred);
  require_same_type("select", on_true, on_false);
  TPU_CHECK(condition.rank() == 0 || condition.dims() == on_true.dims(), "select: the condition is ",
            to_string(condition.type()), ", neither a scalar nor of the shape of ", to_string(on_true.type()));
  return emit("select", {condition, on_true, on_false}, on_true.type());
}

Value shift_left(Value x, Value y) { return binary("shift_left", x, y, kInteger); }
Value shift_right_arithmetic(Value x, Value y) { return binary("shift_right_arithmetic", x, y, kInteger); }
Value shift_right_logical(Value x, Value y) { return binary("shift_right_logical", x, y, kInteger); }
Value sign(Value x) { return unary("sign", x, kSigned | kAnalytic); }
Value sine(Value x) { return unary("sine", x, kAnalytic); }
Value sqrt(Value x) { return unary("sqrt", x, kAnalytic); }
Value subtract(Value x, Value y) { return binary("subtract", x, y, kNumber); }
Value tan(Value x) { return unary("tan", x, kAnalytic); }
Value tanh(Value x) { return unary("tanh", x, kAnalytic); }
Value xor_(Value x, Value y) { return binary("xor", x, y, kPred | kInteger); }

// These three broadcast: math.h and ops.h would differ in nothing else.
Value atan2(Arg y, Arg x) {
  auto [a, b] = broadcast_pair("atan2", y, x);
  return binary("atan2", a, b, kAnalytic);
}
Value maximum(Arg x, Arg y) {
  auto [a, b] = broadcast_pair("maximum", x, y);
  return binary("maximum", a, b, kAny);
}
Value minimum(Arg x, Arg y) {
  auto [a, b] = broadcast_pair("minimum", x, y);
  return binary("minimum", a, b, kAny);
}

Value acos(Value x) { return unary("chlo.acos", x, kAnalytic); }
Value acosh(Value x) { return unary("chlo.acosh", x, kAnalytic); }
Value asin(Value x) { return unary("chlo.asin", x, kAnalytic); }
Value asinh(Value x) { return unary("chlo.asinh", x, kAnalytic); }
Value atan(Value x) { return unary("chlo.atan", x, kAnalytic); }
Value atanh(Value x) { return unary("chlo.atanh", x, kAnalytic); }
Value bessel_i1e(Value x) { return unary("chlo.bessel_i1e", x, kFloat); }
Value cosh(Value x) { return unary("chlo.cosh", x, kAnalytic); }
Value digamma(Value x) { return unary("chlo.digamma", x, kFloat); }
Value erf(Value x) { return unary("chlo.erf", x, kFloat); }
Value erf_inv(Value x) { return unary("chlo.erf_inv", x, kFloat); }
Value erfc(Value x) { return unary("chlo.erfc", x, kFloat); }
Value is_inf(Value x) { return test("chlo.is_inf", x); }
Value is_neg_inf(Value x) { return test("chlo.is_neg_inf", x); }
Value is_pos_inf(Value x) { return test("chlo.is_pos_inf", x); }
Value lgamma(Value x) { return unary("chlo.lgamma", x, kFloat); }
Value next_after(Value x, Value y) { return binary("chlo.next_after", x, y, kFloat); }
Value polygamma(Value n, Value x) { return binary("chlo.polygamma", n, x, kFloat); }
Value sinh(Value x) { return unary("chlo.sinh", x, kAnalytic); }
Value square(Value x) { return unary("chlo.square", x, kAnalytic); }
Value zeta(Value x, Value q) { return binary("chlo.zeta", x, q, kFloat); }

}  // namespace tpu::hlo
