// SPDX-License-Identifier: Apache-2.0
// Orthogonal polynomials by their three-term recurrences, all elements in step.
#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

// p_(k+1) from x, k, p_k and p_(k-1)
using Recurrence = Value (*)(Value x, Value k, Value q, Value p);

Value chebyshev(Value x, Value, Value q, Value p) { return x * 2 * q - p; }
Value hermite_h(Value x, Value k, Value q, Value p) { return (x * q - k * p) * 2; }
Value hermite_he(Value x, Value k, Value q, Value p) { return x * q - k * p; }
Value laguerre(Value x, Value k, Value q, Value p) { return ((k * 2 + 1 - x) * q - k * p) / (k + 1); }
Value legendre(Value x, Value k, Value q, Value p) { return ((k * 2 + 1) * x * q - k * p) / (k + 1); }

struct Family {
  const char* name;
  double slope, offset;  // p_1 = slope x + offset
  Recurrence next;
  bool shifted = false;  // of 2x - 1
};

// p_0 = 1; 0 below degree 0.
Value polynomial(const Family& family, Value x, Value n) {
  auto [a, degree] = broadcast_pair(family.name, x, n);
  if (family.shifted) a = a * 2 - 1;
  Value d = convert(degree, S64), one = like(a, 1), first = a * family.slope + family.offset;
  Value result = where(lt(d, 0), like(a, 0), where(eq(d, 0), one, first));
  Value last = max(d, hlo::Axes(all_dims(d)));
  const Values end = while_(
      {scalar(graph(), S64, 1), one, first, result}, [&](const Values& s) { return lt(s[0], last); },
      [&](const Values& s) {
        Value next = family.next(a, convert(s[0], a.dtype()), s[2], s[1]), k = s[0] + 1;
        return Values{k, s[2], next, where(eq(d, k), next, s[3])};
      });
  return end[3];
}

constexpr Family kFamilies[] = {
    {"special_chebyshev_polynomial_t", 1, 0, chebyshev},
    {"special_chebyshev_polynomial_u", 2, 0, chebyshev},
    {"special_chebyshev_polynomial_v", 2, -1, chebyshev},
    {"special_chebyshev_polynomial_w", 2, 1, chebyshev},
    {"special_hermite_polynomial_h", 2, 0, hermite_h},
    {"special_hermite_polynomial_he", 1, 0, hermite_he},
    {"special_laguerre_polynomial_l", -1, 1, laguerre},
    {"special_legendre_polynomial_p", 1, 0, legendre},
    {"special_shifted_chebyshev_polynomial_t", 1, 0, chebyshev, true},
    {"special_shifted_chebyshev_polynomial_u", 2, 0, chebyshev, true},
    {"special_shifted_chebyshev_polynomial_v", 2, -1, chebyshev, true},
    {"special_shifted_chebyshev_polynomial_w", 2, 1, chebyshev, true},
};

const bool registered = [] {
  for (const Family& family : kFamilies) {
    Registrar(__FILE__, __LINE__, family.name,
              [&family](Value x, Value n) {
                return pointwise(Rule::Float, {x, n}, [&](const Values& v) { return polynomial(family, v[0], v[1]); });
              },
              {.host_scalars = true});
  }
  return true;
}();

}  // namespace
}  // namespace tpu::lowering
