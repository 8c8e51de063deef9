// SPDX-License-Identifier: Apache-2.0
// Arithmetic of two and three operands.
#include <cmath>
#include <numbers>

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

// Integers can't be divided by zero.
void check_divisor(Value b) {
  if (is_integer(b.dtype())) check_no_zero(b, ErrorKind::Runtime, "ZeroDivisionError");
}

// The remainder with the sign of the dividend.
Value c_mod(Value a, Value b) {
  check_divisor(b);
  return a % b;
}

// The remainder with the sign of the divisor.
Value python_mod(Value a, Value b) {
  Value r = c_mod(a, b);
  const DType t = a.dtype();
  if (is_integer(t) && !is_signed_integer(t)) return r;
  return where(ne(r, 0) & ne(lt(r, 0), lt(b, 0)), r + b, r);
}

Value truncated_quotient(Value a, Value b) {
  check_divisor(b);
  Value q = a / b;
  return is_floating(q.dtype()) ? where(lt(q, 0), ceil(q), floor(q)) : q;
}

// floor(a / b), from the remainder so that rounding of the quotient can't carry it to the next
// whole number; as Python's float floor division.
Value floored_quotient(Value a, Value b) {
  check_divisor(b);
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

// x log y; 0 where x is 0, unless y is NaN
template <Value (*logarithm)(Value)>
Value x_log(Value x, Value y) {
  return where(is_nan(y), y, where(eq(x, 0), zeros_like(x), x * logarithm(y)));
}

// log(e^x + e^y) from the larger; infinities of one sign stay as they are
Value log_add_exp(Value x, Value y) {
  if (is_complex(x.dtype())) {
    Value swap = lt(real(x), real(y)), high = where(swap, y, x), low = where(swap, x, y);
    return high + log1p(exp(low - high));
  }
  Value high = maximum(x, y);
  return where(eq(abs(x), HUGE_VAL) & eq(x, y), x, high + log1p(exp(-abs(x - y))));
}
Value log_add_exp2(Value x, Value y) {
  using std::numbers::log2e, std::numbers::ln2;
  if (is_complex(x.dtype())) return log_add_exp(x * ln2, y * ln2) * log2e;
  Value high = maximum(x, y);
  return where(eq(abs(x), HUGE_VAL) & eq(x, y), x, high + log1p(exp(-abs(x - y) * ln2)) * log2e);
}

// sqrt(x^2 + y^2), scaled by the larger so that squares don't overflow
Value hypotenuse(Value x, Value y) {
  Value a = abs(x), b = abs(y), high = maximum(a, b), low = minimum(a, b), ratio = low / high;
  Value r = where(eq(high, 0), high, high * sqrt(1 + ratio * ratio));
  return where(eq(a, HUGE_VAL) | eq(b, HUGE_VAL), like(r, HUGE_VAL), r);
}

DType bits_of(DType t) { return byte_size(t) == 8 ? S64 : byte_size(t) == 4 ? S32 : S16; }

// |x| with y's sign bit: of -0 and NaN too
Value copy_sign(Value x, Value y) {
  const DType t = x.dtype(), bits = bits_of(t);
  return where(lt(bitcast_convert(y, bits), 0), -abs(x), abs(x));
}

Value heaviside(Value x, Value at_zero) {
  auto [a, b] = broadcast_pair("heaviside", x, at_zero);
  if (a.dtype() == PRED) return a | b;
  return where(eq(a, 0), b, convert(gt(a, 0), a.dtype()));
}

// Euclid's algorithm on all elements until none is left.
Value gcd(Value x, Value y) {
  auto [a, b] = broadcast_pair("gcd", x, y);
  if (is_signed_integer(a.dtype())) a = abs(a), b = abs(b);
  return while_(
      {a, b}, [](const Values& s) { return any(ne(s[1], 0), Axes(all_dims(s[1]))); },
      [](const Values& s) {
        Value done = eq(s[1], 0);
        return Values{where(done, s[0], s[1]), where(done, s[1], s[0] % where(done, like(s[1], 1), s[1]))};
      })[0];
}

Value lcm(Value x, Value y) {
  const DType t = x.dtype();
  if (byte_size(t) < 4) return convert(lcm(convert(x, S32), convert(y, S32)), t);  // C's promotion: |.| before wrapping
  auto [a, b] = broadcast_pair("lcm", x, y);
  Value g = gcd(a, b), r = where(eq(g, 0), g, a / where(eq(g, 0), like(g, 1), g) * b);
  return is_signed_integer(r.dtype()) ? abs(r) : r;
}

Value next_after_of(Value x, Value y) {
  auto [a, b] = broadcast_pair("nextafter", x, y);
  return next_after(a, b);
}
Value arc_tangent(Value y, Value x) { return atan2(y, x); }

Value divide_by_mode(Value x, Value y, const std::optional<std::string>& mode) {
  if (!mode) return arithmetic(x, y, true, [](Value a, Value b) { return a / b; });
  TPU_CHECK(*mode == "trunc" || *mode == "floor",
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", *mode, "'");
  return arithmetic(x, y, false, *mode == "trunc" ? truncated_quotient : floored_quotient);
}

}  // namespace

TPU_LOWER("add.Tensor",
          [](Value x, Value y, Scale alpha) {
            return arithmetic(x, y, false, [&](Value a, Value b) { return a + scaled(b, alpha); });
          },
          {.host_scalars = true});

TPU_LOWER("sub.Tensor",
          [](Value x, Value y, Scale alpha) {
            return arithmetic(x, y, false, [&](Value a, Value b) { return a - scaled(b, alpha); });
          },
          {.host_scalars = true});

TPU_LOWER("rsub.Tensor",
          [](Value x, Value y, Scale alpha) {
            return arithmetic(x, y, false, [&](Value a, Value b) { return b - scaled(a, alpha); });
          },
          {.host_scalars = true});

TPU_LOWER("mul.Tensor",
          [](Value x, Value y) { return arithmetic(x, y, false, [](Value a, Value b) { return a * b; }); },
          {.host_scalars = true});

TPU_LOWER("div.Tensor", [](Value x, Value y) { return divide_by_mode(x, y, std::nullopt); }, {.host_scalars = true});
TPU_LOWER("div.Tensor_mode", divide_by_mode, {.host_scalars = true});
TPU_LOWER("floor_divide", [](Value x, Value y) { return divide_by_mode(x, y, "floor"); }, {.host_scalars = true});

// The sign of the divisor; fmod: of the dividend.
TPU_LOWER({"remainder.Tensor", "remainder.Scalar_Tensor"},
          [](Value x, Value y) {
            Refused{"remainder_cpu", bool_or_complex}.check(common_dtype({x, y}));
            return arithmetic(x, y, false, python_mod);
          },
          {.host_scalars = true});
TPU_LOWER("fmod.Tensor",
          [](Value x, Value y) {
            Refused{"fmod_cpu", bool_or_complex}.check(common_dtype({x, y}));
            return arithmetic(x, y, false, c_mod);
          },
          {.host_scalars = true});

TPU_LOWER_BINARY({
    {{"atan2"}, Rule::Float, arc_tangent},
    {{"copysign.Tensor"}, Rule::Float, copy_sign},
    {{"gcd"}, Rule::Raw, gcd},
    {{"heaviside"}, Rule::Raw, heaviside},
    {{"hypot"}, Rule::Same, hypotenuse},
    {{"lcm"}, Rule::Raw, lcm},
    {{"logaddexp"}, Rule::Float, log_add_exp},
    {{"logaddexp2"}, Rule::Float, log_add_exp2},
    {{"nextafter"}, Rule::Raw, next_after_of},
    {{"special_xlog1py"}, Rule::Float, x_log<log_plus_one>},
    {{"xlogy.Tensor"}, Rule::Float, x_log<log>},
});

// x = mantissa 2^exponent, 0.5 <= |mantissa| < 1; zeros, infinities and NaN have exponent 0. On the
// bits, since subnormal numbers may be flushed by arithmetic.
TPU_LOWER("frexp.Tensor", [](Value self) {
  Value x = convert(self, self.dtype() == F64 ? F64 : F32);
  const bool wide = x.dtype() == F64;
  const DType t = wide ? S64 : S32;
  const int64_t width = wide ? 52 : 23, bias = wide ? 1022 : 126, largest = wide ? 0x7FF : 0xFF, bits = wide ? 64 : 32;
  const int64_t fraction_mask = (int64_t{1} << width) - 1;
  Value raw = bitcast_convert(x, t), field = (raw >> width) & largest, fraction = raw & fraction_mask;
  Value subnormal = eq(field, 0), shift = count_leading_zeros(fraction) - (bits - 1 - width);
  Value exponent = where(subnormal, 1 - shift, field) - bias;
  fraction = where(subnormal, (fraction << shift) & fraction_mask, fraction);
  Value mantissa = bitcast_convert((raw & lowest(x.graph(), t)) | (bias << width) | fraction, x.dtype());
  Value as_is = (subnormal & eq(raw & fraction_mask, 0)) | eq(field, largest);
  return std::tuple{convert(where(as_is, x, mantissa), self.dtype()),
                    convert(where(as_is, zeros_like(exponent), exponent), S32)};
});

// self + value t1 t2,  self + value t1 / t2
TPU_LOWER("addcmul",
          [](Value self, Value t1, Value t2, Scale value) {
            return pointwise(Rule::Same, {self, t1, t2},
                             [&](const Values& v) { return v[0] + scaled(v[1], value) * v[2]; });
          },
          {.host_scalars = true});

TPU_LOWER("addcdiv",
          [](Value self, Value t1, Value t2, Scale value) {
            return pointwise(Rule::Same, {self, t1, t2},
                             [&](const Values& v) { return v[0] + scaled(v[1] / v[2], value); });
          },
          {.host_scalars = true});

// self + weight (end - self), from whichever end is nearer
TPU_LOWER({"lerp.Tensor", "lerp.Scalar"},
          [](Value self, Value end, Value weight) {
            const DType t = common_dtype({self, end});
            Value a = operand(self, t), b = operand(end, t),
                  w = is_weak(weight) ? convert(weight, a.dtype()) : operand(weight, t);
            Value d = b - a;
            return convert(where(lt(abs(w), 0.5), a + w * d, b - d * (1 - w)), t);
          },
          {.host_scalars = true});

}  // namespace tpu::lowering
