// SPDX-License-Identifier: Apache-2.0
// pow: floats by XLA's power, integers exactly, small whole exponents by multiplication.
#include <cmath>

#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

// x^n for n >= 0, wrapping, by squaring: XLA's power looks at few bits of the exponent.
Value power_by_squaring(Value x, Value n) {
  return while_(
      {like(x, 1), x, n}, [](const Values& s) { return any(ne(s[2], 0), hlo::Axes(all_dims(s[2]))); },
      [](const Values& s) {
        Value product = where(ne(s[2] & 1, 0), s[0] * s[1], s[0]);
        return Values{product, s[1] * s[1], shift_right_logical(s[2], like(s[2], 1))};
      })[0];
}

// Negative exponents of integers: 1 / x rounded toward zero, so 0 unless x is 1 or -1; 0 for x = 0.
Value integer_power(Value x, Value n) {
  if (!is_signed_integer(x.dtype())) return power_by_squaring(x, n);
  Value zero = like(x, 0), one = like(x, 1);
  Value odd = ne(n & 1, 0);
  Value inverse = where(eq(x, 1), one, where(eq(x, -1), where(odd, like(x, -1), one), zero));
  return where(lt(n, 0), inverse, power_by_squaring(x, maximum(n, 0)));
}

Value power_of(Value x, Value y) {
  auto [a, b] = broadcast_pair("pow", x, y);
  if (a.dtype() == PRED) return a | !b;
  return is_integer(a.dtype()) ? integer_power(a, b) : power(a, b);
}

// Exponents that CPU PyTorch too has a short way for.
Value power_of_number(Value x, const Literal& exponent) {
  const DType t = x.dtype();
  if (t == PRED) return power_of(x, like(x, exponent));
  if (exponent.is_integer() && is_integer(t)) {
    const int64_t n = exponent.bits();
    TPU_CHECK(n >= 0, "Integers to negative integer powers are not allowed.");
    if (n == 0) return like(x, 1);
    if (n == 1) return x;
    if (n == 2) return x * x;
    if (n == 3) return x * x * x;
    return integer_power(x, like(x, exponent));
  }
  const std::complex<double> n = exponent.number();
  if (n == 0.0) return like(x, 1);
  if (n == 1.0) return x;
  if (n == 2.0) return x * x;
  if (n == 3.0) return x * x * x;
  if (n == 0.5) return sqrt(x);
  if (n == -0.5) return is_complex(t) ? 1 / sqrt(x) : rsqrt(x);
  if (n == -1.0) return 1 / x;
  if (n == -2.0) return 1 / (x * x);
  return power(x, like(x, exponent));
}

}  // namespace

TPU_LOWER_BINARY({{{"pow.Tensor_Tensor", "pow.Scalar"}, Rule::Same, power_of}});

TPU_LOWER("pow.Tensor_Scalar", [](Value x, Literal exponent) {
  const DType t = common_dtype({x}, exponent);
  return convert(power_of_number(operand(x, t), exponent), t);
});

}  // namespace tpu::lowering
