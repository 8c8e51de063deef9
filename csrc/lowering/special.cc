// SPDX-License-Identifier: Apache-2.0
// Error, gamma and related functions. Bessel functions: bessel.cc; polynomials: orthogonal.cc.
#include <cmath>
#include <numbers>

#include "lowering/pointwise.h"
#include "lowering/series.h"

namespace tpu::lowering {
namespace {

constexpr double kSqrtHalf = std::numbers::sqrt2 / 2;
const double kInf = HUGE_VAL;
const double kNaN = std::nan("");

// XLA's polynomial is off by some ulps, of which e^(x^2) in the gradient makes many: a step of Newton's, in the tails
// by erfc, which keeps its digits there.
Value erf_inverse(Value y) {
  Value x = erf_inv(y), a = abs(y), at = abs(x);
  Value slope = exp(-x * x) * (2 * std::numbers::inv_sqrtpi);
  Value miss = where(gt(a, 0.5), (1 - a) - erfc(at), erf(at) - a) / slope;
  return where(lt(a, 1), where(lt(y, 0), x + miss, x - miss), x);
}

// e^(x^2) erfc(x); from where erfc loses its digits, the asymptotic series
Value erfcx(Value x) {
  const double far = x.dtype() == F64 ? 20 : 8;
  Value near = exp(x * x) * erfc(x);
  Value z = 1 / (x * x);
  Value series = horner(z, {-945.0 / 32, 105.0 / 16, -15.0 / 8, 3.0 / 4, -1.0 / 2, 1});
  return where(gt(x, far), series / x * std::numbers::inv_sqrtpi, near);
}

// log Phi(x); far below, from erfcx
Value log_ndtr(Value x) {
  Value t = x * kSqrtHalf;
  return where(lt(x, -1), log(erfcx(-t) / 2) - t * t, log1p(erfc(t) / -2));
}

// -x log x; 0 at 0, -inf below
Value entropy(Value x) {
  return where(is_nan(x), x, where(gt(x, 0), -x * log(x), where(eq(x, 0), like(x, 0), like(x, -kInf))));
}

// Poles: at 0 the infinity of -x's sign, NaN at negative whole numbers.
Value digamma_of(Value x) {
  Value at_zero = where(lt(1 / x, 0), like(x, kInf), like(x, -kInf));
  Value pole = lt(x, 0) & eq(x, floor(x));
  return where(eq(x, 0), at_zero, where(pole, like(x, kNaN), digamma(x)));
}

// For x < 1/2 by reflection.
Value trigamma(Value x) {
  using std::numbers::pi;
  Value low = lt(x, 0.5), two = like(x, 2);
  Value s = sin(x * pi), direct = zeta(two, where(low, 1 - x, x));
  return where(low, (pi * pi) / (s * s) - direct, direct);
}

// sum over k >= 0 of (q + k)^-s. Terms below q = 1 are summed one by one, since CHLO's expansion is
// only exact above; far below, where that would take too long, it stands.
Value hurwitz_zeta(Value s, Value q) {
  const auto early = [](Value v) { return lt(v, 1) & gt(v, -10000); };
  const Values end = while_(
      {q, like(q, 0)}, [&](const Values& v) { return any(early(v[0]), hlo::Axes(all_dims(v[0]))); },
      [&](const Values& v) {
        Value step = early(v[0]);
        return Values{where(step, v[0] + 1, v[0]), where(step, v[1] + pow(v[0], -s), v[1])};
      });
  Value direct = zeta(s, q);
  Value sum = where(early(q) & is_finite(direct), end[1] + zeta(s, end[0]), direct);
  Value pole = le(q, 0) & eq(q, floor(q));
  // At s = inf what Cephes' loops give: terms grow for q < 1, the first alone counts at 1, and inf * 0 above.
  Value endless = where(lt(q, 1), like(q, kInf), where(eq(q, 1), like(q, 1), like(q, kNaN)));
  sum = where(eq(s, kInf), endless, sum);
  return where(lt(s, 1), like(q, kNaN), where(pole, like(q, kInf), sum));
}

Value zeta_of(Value x, Value q) {
  auto [a, b] = broadcast_pair("zeta", x, q);
  return hurwitz_zeta(a, b);
}

// Quantile of the normal distribution: rational approximations of Cephes, in the middle and for
// either tail.
Value ndtri(Value p) {
  Value flip = gt(p, 1 - 0.13533528323661269189), y = where(flip, 1 - p, p), centre = y - 0.5, z = centre * centre;
  Value middle =
      (centre + centre * (z *
                          horner(z, {-5.99633501014107895267E1, 9.80010754185999661536E1, -5.66762857469070293439E1,
                                     1.39312609387279679503E1, -1.23916583867381258016E0}) /
                          horner(z, {1, 1.95448858338141759834E0, 4.67627912898881538453E0, 8.63602421390890590575E1,
                                     -2.25462687854119370527E2, 2.00260212380060660359E2, -8.20372256168333339912E1,
                                     1.59056225126211695515E1, -1.18331621121330003142E0}))) *
      2.50662827463100050242E0;
  Value x = sqrt(log(y) * -2), w = 1 / x;
  Value near = horner(w, {4.05544892305962419923E0, 3.15251094599893866154E1, 5.71628192246421288162E1,
                          4.40805073893200834700E1, 1.46849561928858024014E1, 2.18663306850790267539E0,
                          -1.40256079171354495875E-1, -3.50424626827848203418E-2, -8.57456785154685413611E-4}) /
               horner(w, {1, 1.57799883256466749731E1, 4.53907635128879210584E1, 4.13172038254672030440E1,
                          1.50425385692907503408E1, 2.50464946208309415979E0, -1.42182922854787788574E-1,
                          -3.80806407691578277194E-2, -9.33259480895457427372E-4});
  Value far = horner(w, {3.23774891776946035970E0, 6.91522889068984211695E0, 3.93881025292474443415E0,
                         1.33303460815807542389E0, 2.01485389549179081538E-1, 1.23716634817820021358E-2,
                         3.01581553508235416007E-4, 2.65806974686737550832E-6, 6.23974539184983293730E-9}) /
              horner(w, {1, 6.02427039364742014255E0, 3.67983563856160859403E0, 1.37702099489081330271E0,
                         2.16236993594496635890E-1, 1.34204006088543189037E-2, 3.28014464682127739104E-4,
                         2.89247864745380683936E-6, 6.79019408009981274425E-9});
  Value tail = log(x) / x - x + w * where(lt(x, 8), near, far);
  Value r = where(gt(y, 0.13533528323661269189), middle, where(flip, -tail, tail));
  r = where(eq(p, 0), like(p, -kInf), where(eq(p, 1), like(p, kInf), r));
  return where(ge(p, 0) & le(p, 1), r, like(p, kNaN));
}

}  // namespace

TPU_LOWER_UNARY({
    {"digamma", Rule::Float, digamma_of},
    {"erf", Rule::Float, erf},
    {"erfc", Rule::Float, erfc},
    {"erfinv", Rule::Float, erf_inverse},
    {"lgamma", Rule::Float, lgamma},
    {"special_entr", Rule::Float, entropy},
    {"special_erfcx", Rule::Float, erfcx},
    {"special_log_ndtr", Rule::Float, log_ndtr},
    {"special_ndtri", Rule::Float, ndtri},
});
TPU_LOWER_BINARY({{{"special_zeta"}, Rule::Float, zeta_of}});

// (-1)^(n+1) n! zeta(n + 1, x)
TPU_LOWER("polygamma", [](int64_t n, Value self) {
  TPU_CHECK(n >= 0, "polygamma(n, x) does not support negative n.");
  return pointwise(Rule::Float, {self}, [&](const Values& v) {
    if (n == 0) return digamma_of(v[0]);
    if (n == 1) return trigamma(v[0]);
    const double order = static_cast<double>(n);
    return hurwitz_zeta(like(v[0], order + 1), v[0]) * ((n % 2 ? 1 : -1) * std::tgamma(order + 1));
  });
});

}  // namespace tpu::lowering
