// SPDX-License-Identifier: Apache-2.0
// Bessel functions and Airy's Ai, in the approximations of Cephes.
#include <cmath>
#include <numbers>

#include "lowering/bessel_tables.h"
#include "lowering/pointwise.h"
#include "lowering/series.h"

namespace tpu::lowering {
namespace {

using namespace cephes;
using std::numbers::pi;

const double kInf = HUGE_VAL;
const double kNaN = std::nan("");

// Ordinary functions far out: sqrt(2/(pi x)) (P cos(x - shift) - 5/x Q sin(x - shift)), and with sine
// and cosine changed for the second kind.
struct Far {
  Value p, q, angle, scale;
};
Far far_out(Value x, double shift, Table& pp, Table& pq, Table& qp, Table& qq) {
  Value z = 25 / (x * x);
  return {horner(z, pp) / horner(z, pq), 5 / x * (horner(z, qp) / horner(z, qq)), x - shift, sqrt(2 / pi / x)};
}
Far far_0(Value x) { return far_out(x, pi / 4, j0_pp, j0_pq, j0_qp, j0_qq); }
Far far_1(Value x) { return far_out(x, 3 * pi / 4, j1_pp, j1_pq, j1_qp, j1_qq); }
Value first_kind(const Far& f) { return (f.p * cos(f.angle) - f.q * sin(f.angle)) * f.scale; }
Value second_kind(const Far& f) { return (f.p * sin(f.angle) + f.q * cos(f.angle)) * f.scale; }

Value bessel_j0(Value x) {
  Value a = abs(x), z = a * a;
  Value near = (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * horner(z, j0_rp) / horner(z, j0_rq);
  return where(lt(a, 1e-5), 1 - z / 4, where(le(a, 5), near, first_kind(far_0(a))));
}

Value bessel_j1(Value x) {
  Value a = abs(x), z = a * a;
  Value near = horner(z, j1_rp) / horner(z, j1_rq) * a * (z - 14.6819706421238932572) * (z - 49.2184563216946036703);
  Value r = where(le(a, 5), near, first_kind(far_1(a)));
  return where(lt(x, 0), -r, r);
}

// -inf at 0, NaN below
Value from_zero(Value x, Value r, double at_zero) {
  return where(gt(x, 0), r, where(eq(x, 0), like(x, at_zero), like(x, kNaN)));
}

Value bessel_y0(Value x) {
  Value z = x * x, near = horner(z, y0_yp) / horner(z, y0_yq) + log(x) * bessel_j0(x) * (2 / pi);
  return from_zero(x, where(le(x, 5), near, second_kind(far_0(x))), -kInf);
}

Value bessel_y1(Value x) {
  Value z = x * x, near = x * (horner(z, y1_yp) / horner(z, y1_yq)) + (bessel_j1(x) * log(x) - 1 / x) * (2 / pi);
  return from_zero(x, where(le(x, 5), near, second_kind(far_1(x))), -kInf);
}

// e^-|x| I(x), even part: Chebyshev series up to 8 and beyond.
Value scaled_i0(Value x) {
  Value a = abs(x);
  return where(le(a, 8), chebyshev_series(a / 2 - 2, i0_a), chebyshev_series(32 / a - 2, i0_b) / sqrt(a));
}
Value scaled_i1(Value x) {
  Value a = abs(x);
  Value r = where(le(a, 8), chebyshev_series(a / 2 - 2, i1_a) * a, chebyshev_series(32 / a - 2, i1_b) / sqrt(a));
  return where(lt(x, 0), -r, r);
}
Value bessel_i0(Value x) { return exp(abs(x)) * scaled_i0(x); }
Value bessel_i1(Value x) { return exp(abs(x)) * scaled_i1(x); }

template <bool scaled>
Value bessel_k0(Value x) {
  Value near = chebyshev_series(x * x - 2, k0_a) - log(x * 0.5) * bessel_i0(x);
  Value far = chebyshev_series(8 / x - 2, k0_b) / sqrt(x);
  if (scaled)
    near = near * exp(x);
  else
    far = far * exp(-x);
  return from_zero(x, where(le(x, 2), near, far), kInf);
}
template <bool scaled>
Value bessel_k1(Value x) {
  Value near = log(x * 0.5) * bessel_i1(x) + chebyshev_series(x * x - 2, k1_a) / x;
  Value far = chebyshev_series(8 / x - 2, k1_b) / sqrt(x);
  if (scaled)
    near = near * exp(x);
  else
    far = far * exp(-x);
  return from_zero(x, where(le(x, 2), near, far), kInf);
}

// sin(x) / x, near 0 by its series
Value spherical_j0(Value x) {
  Value near = horner(x * x, {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1});
  return where(eq(abs(x), kInf), like(x, 0), where(lt(abs(x), 0.5), near, sin(x) / x));
}

// By its power series around 0 and asymptotic expansions on both sides.
Value airy_ai(Value x) {
  const double scale = std::numbers::inv_sqrtpi;
  Value left = abs(x), zeta = left * sqrt(left) * (2.0 / 3), z = 1 / zeta, zz = z * z, t = zeta + pi / 4;
  Value below = (sin(t) * (1 + zz * horner(zz, airy_afn) / horner(zz, airy_afd)) -
                 cos(t) * (z * horner(zz, airy_agn) / horner(zz, airy_agd))) *
                scale / sqrt(sqrt(left));
  Value above = horner(z, airy_an) / horner(z, airy_ad) * (scale / 2) / (sqrt(sqrt(left)) * exp(zeta));
  Value cube = x * x * x, m = like(x, 1), n = x, f = m, g = n;
  for (int k = 1; k < 46; k += 3) {
    m = m * cube / ((k + 1.0) * (k + 2.0));
    n = n * cube / ((k + 2.0) * (k + 3.0));
    f = f + m;
    g = g + n;
  }
  Value middle = f * 0.355028053887817239260 - g * 0.258819403792806798405;
  Value r = where(lt(x, -2.09), below, where(lt(x, 2.09), middle, above));
  return where(eq(left, kInf), like(x, kNaN), where(gt(x, 103.892), like(x, 0), r));
}

}  // namespace

TPU_LOWER_UNARY({
    {"i0", Rule::Float, bessel_i0},
    {"special_i0e", Rule::Float, scaled_i0},
    {"special_i1", Rule::Float, bessel_i1},
    {"special_i1e", Rule::Float, scaled_i1},
    {"special_airy_ai", Rule::Float, airy_ai},
    {"special_bessel_j0", Rule::Float, bessel_j0},
    {"special_bessel_j1", Rule::Float, bessel_j1},
    {"special_bessel_y0", Rule::Float, bessel_y0},
    {"special_bessel_y1", Rule::Float, bessel_y1},
    {"special_modified_bessel_i0", Rule::Float, bessel_i0},
    {"special_modified_bessel_i1", Rule::Float, bessel_i1},
    {"special_modified_bessel_k0", Rule::Float, bessel_k0<false>},
    {"special_modified_bessel_k1", Rule::Float, bessel_k1<false>},
    {"special_scaled_modified_bessel_k0", Rule::Float, bessel_k0<true>},
    {"special_scaled_modified_bessel_k1", Rule::Float, bessel_k1<true>},
    {"special_spherical_bessel_j0", Rule::Float, spherical_j0},
});

}  // namespace tpu::lowering
