// SPDX-License-Identifier: Apache-2.0
// Complex numbers from and to their parts. real, imag and conj are views of PyTorch.
#include <numbers>

#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

Value conjugate(Value x) { return is_complex(x.dtype()) ? complex(real(x), -imag(x)) : x; }

// Of real numbers: 0, or pi below 0; NaN stays.
Value angle(Value x) {
  if (is_complex(x.dtype())) return atan2(imag(x), real(x));
  return where(is_nan(x), x, where(lt(x, 0), like(x, std::numbers::pi), like(x, 0)));
}

Value from_parts(Value re, Value im) {
  auto [a, b] = broadcast_pair("complex", re, im);
  return complex(a, b);
}

// r (cos a + i sin a)
Value from_polar(Value r, Value a) { return from_parts(r * cos(a), r * sin(a)); }

template <Value (*f)(Value, Value)>
Value of_parts(Value x, Value y) {
  TPU_CHECK(x.dtype() == y.dtype(), "Expected object of scalar type ", torch_name(x.dtype()), " but got scalar type ",
            torch_name(y.dtype()), " for second argument");
  return f(x, y);
}

}  // namespace

TPU_LOWER_UNARY({
    {"_conj_physical", Rule::Raw, conjugate},
    {"angle", Rule::Float, angle},
});
// Their functional form is composed of _conj_physical.
TPU_LOWER("conj_physical.out", [](Value x, Value) { return conjugate(x); });
TPU_LOWER("conj_physical_", conjugate);
TPU_LOWER("complex", of_parts<from_parts>, {.exact_out = true});
TPU_LOWER("polar", of_parts<from_polar>, {.exact_out = true});

}  // namespace tpu::lowering
