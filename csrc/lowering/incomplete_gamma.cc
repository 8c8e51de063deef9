// SPDX-License-Identifier: Apache-2.0
// The regularized incomplete gamma functions P(a, x) = igamma and Q(a, x) = 1 - P = igammac, by the methods of Cephes
// in the regions where CPU PyTorch chooses them. Each method runs on the elements of its region, the others idle at 1.
#include <cmath>
#include <numbers>

#include "lowering/pointwise.h"
#include "lowering/series.h"

namespace tpu::lowering {
namespace {

constexpr int kMostTerms = 2000;

double epsilon(Value x) { return x.dtype() == F64 ? 0x1p-53 : 0x1p-24; }

// log(1 + s) - s, without cancellation near 0: with r = s / (2 + s), log(1 + s) = 2 atanh(r).
Value log1p_minus(Value s) {
  Value r = s / (s + 2), r2 = r * r;
  std::vector<double> odd;
  for (int k = 17; k > 0; --k) odd.push_back(2.0 / (2 * k + 1));
  return where(lt(abs(s), 0.5), r * r2 * horner(r2, odd) - s * r, log1p(s) - s);
}

// The ratio of Lanczos' polynomials, scaled by e^-g: Gamma(a) = sum (fac / e)^(a - 1/2) with fac = a + g - 1/2.
constexpr double kLanczosG = 6.024680040776729583740234375;
Value lanczos_sum(Value a) {
  const std::vector<double> top = {
      0.006061842346248906525783753964555936883222, 0.5098416655656676188125178644804694509993,
      19.51992788247617482847860966235652136208,    449.9445569063168119446858607650988409623,
      6955.999602515376140356310115515198987526,    75999.29304014542649875303443598909137092,
      601859.6171681098786670226533699352302507,    3481712.15498064590882071018964774556468,
      14605578.08768506808414169982791359218571,    43338889.32467613834773723740590533316085,
      86363131.28813859145546927288977868422342,    103794043.1163445451906271053616070238554,
      56906521.91347156388090791033559122686859};
  const std::vector<double> bottom = {1,        66,        1925,      32670,     357423,   2637558, 13339535,
                                      45995730, 105258076, 150917976, 120543840, 39916800, 0};
  const std::vector<double> top_back(top.rbegin(), top.rend()), bottom_back(bottom.rbegin(), bottom.rend());
  Value large = gt(a, 1), y = where(large, 1 / a, a);
  return where(large, horner(y, top_back) / horner(y, bottom_back), horner(y, top) / horner(y, bottom));
}

// x^a e^-x / Gamma(a)
Value factor(Value a, Value x) {
  const double most = a.dtype() == F64 ? 7.09782712893383996843E2 : 88.72283905206835;
  Value plain = a * log(x) - x - lgamma(a);
  Value far = where(lt(plain, -most), 0, exp(plain));
  Value fac = a + (kLanczosG - 0.5);
  Value head = sqrt(fac / std::numbers::e) / lanczos_sum(a);
  Value small = exp(a - x) * pow(x / fac, a);
  Value num = (x - a - kLanczosG + 0.5) / fac;
  Value big = exp(a * log1p_minus(num) + x * (0.5 - kLanczosG) / fac);
  Value near = head * where(lt(a, 200) & lt(x, 200), small, big);
  return where(gt(abs(a - x), abs(a) * 0.4), far, near);
}

// Steps until every element's term is small or there were too many. State: the first value is the running result, the
// last one the size of the newest term relative to it.
Values until_small(const Values& start, Value like_this, const std::function<Values(const Values&, Value)>& step) {
  const double eps = epsilon(like_this);
  Values state = start;
  state.push_back(scalar(graph(), S32, 1));
  const auto goes_on = [&](const Values& s) {
    Value open = gt(s[start.size() - 1], eps);
    return any(open, hlo::Axes(all_dims(open))) & le(s.back(), kMostTerms);
  };
  const auto next = [&](const Values& s) {
    Values old(s.begin(), s.end() - 1);
    Value open = gt(old.back(), eps);
    Values fresh = step(old, convert(s.back(), like_this.dtype()));
    for (size_t i = 0; i < old.size(); ++i) fresh[i] = where(open, fresh[i], old[i]);
    fresh.push_back(s.back() + 1);
    return fresh;
  };
  return while_(state, goes_on, next);
}

// P = factor / a * sum over n of x^n / ((a + 1) ... (a + n))
Value p_series(Value a, Value x) {
  Value one = like(x, 1);
  Value sum = until_small({one, one, one}, x, [&](const Values& s, Value n) {
    Value term = s[1] * x / (a + n), total = s[0] + term;
    return Values{total, term, term / total};
  })[0];
  return sum * factor(a, x) / a;
}

// Q for small x: 1 - x^a / Gamma(1 + a) - x^a / Gamma(a) * sum over n of (-x)^n / (n! (a + n))
Value q_series(Value a, Value x) {
  Value one = like(x, 1), zero = like(x, 0);
  Value sum = until_small({zero, one, one}, x, [&](const Values& s, Value n) {
    Value power = s[1] * -x / n, term = power / (a + n), total = s[0] + term;
    return Values{total, power, where(eq(total, 0), abs(term), abs(term / total))};
  })[0];
  Value log_power = a * log(x);
  return -expm1(log_power - lgamma(a + 1)) - exp(log_power - lgamma(a)) * sum;
}

// Q for large x: a continued fraction by its convergents p / q, scaled down when they grow.
Value q_fraction(Value a, Value x) {
  Value one = like(x, 1), z0 = x + 2 - a;
  const Values start = {(x + 1) / (z0 * x), one, x, x + 1, z0 * x, one};
  const double big = 4503599627370496;
  Value found = until_small(start, x, [&](const Values& s, Value n) {
    Value y = 1 - a + n, z = z0 + n * 2, yc = y * n;
    Value p = s[3] * z - s[1] * yc, q = s[4] * z - s[2] * yc;
    Value r = where(eq(q, 0), s[0], p / q), t = where(eq(q, 0), one, abs((s[0] - r) / r));
    Value scale = where(gt(abs(p), big), like(x, 1 / big), one);
    return Values{r, s[3] * scale, s[4] * scale, p * scale, q * scale, t};
  })[0];
  return found * factor(a, x);
}

// Temme's expansion for large a and x near it (DLMF 8.12): coefficients of eta^n / a^k.
const std::vector<std::vector<double>> kTemme = {
    {-3.3333333333333333e-1, 8.3333333333333333e-2, -1.4814814814814815e-2, 1.1574074074074074e-3, 3.527336860670194e-4,
     -1.7875514403292181e-4, 3.9192631785224378e-5, -2.1854485106799922e-6, -1.85406221071516e-6, 8.296711340953086e-7,
     -1.7665952736826079e-7, 6.7078535434014986e-9, 1.0261809784240308e-8, -4.3820360184533532e-9,
     9.1476995822367902e-10, -2.551419399494625e-11},
    {-1.8518518518518519e-3, -3.4722222222222222e-3, 2.6455026455026455e-3, -9.9022633744855967e-4,
     2.0576131687242798e-4, -4.0187757201646091e-7, -1.8098550334489978e-5, 7.6491609160811101e-6,
     -1.6120900894563446e-6, 4.6471278028074343e-9, 1.378633446915721e-7, -5.752545603517705e-8, 1.1951628599778147e-8,
     -1.7543241719747648e-11, -1.0091543710600413e-9, 4.1627929918425826e-10},
    {4.1335978835978836e-3, -2.6813271604938272e-3, 7.7160493827160494e-4, 2.0093878600823045e-6,
     -1.0736653226365161e-4, 5.2923448829120125e-5, -1.2760635188618728e-5, 3.4235787340961381e-8,
     1.3721957309062933e-6, -6.298992138380055e-7, 1.4280614206064242e-7, -2.0477098421990866e-10,
     -1.4092529910867521e-8, 6.228974084922022e-9, -1.3670488396617113e-9, 9.4283561590146782e-13},
    {6.4943415637860082e-4, 2.2947209362139918e-4, -4.6918949439525571e-4, 2.6772063206283885e-4,
     -7.5618016718839764e-5, -2.3965051138672967e-7, 1.1082654115347302e-5, -5.6749528269915966e-6,
     1.4230900732435884e-6, -2.7861080291528142e-11, -1.6958404091930277e-7, 8.0994649053880824e-8,
     -1.9111168485973654e-8, 2.3928620439808118e-12, 2.0620131815488798e-9, -9.4604966618551322e-10},
    {-8.618882909167117e-4, 7.8403922172006663e-4, -2.9907248030319018e-4, -1.4638452578843418e-6,
     6.6414982154651222e-5, -3.9683650471794347e-5, 1.1375726970678419e-5, 2.5074972262375328e-10,
     -1.6954149536558306e-6, 8.9075075322053097e-7, -2.2929348340008049e-7, 2.956794137544049e-11,
     2.8865829742708784e-8, -1.4189739437803219e-8, 3.4463580499464897e-9, -2.3024517174528067e-13},
    {-3.3679855336635815e-4, -6.9728137583658578e-5, 2.7727532449593921e-4, -1.9932570516188848e-4,
     6.7977804779372078e-5, 1.419062920643967e-7, -1.3594048189768693e-5, 8.0184702563342015e-6, -2.2914811765080952e-6,
     -3.252473551298454e-10, 3.4652846491085265e-7, -1.8447187191171343e-7, 4.8240967037894181e-8,
     -1.7989466721743515e-14, -6.3061945000135234e-9, 3.1624176287745679e-9},
    {5.3130793646399222e-4, -5.9216643735369388e-4, 2.7087820967180448e-4, 7.9023532326603279e-7,
     -8.1539693675619688e-5, 5.6116827531062497e-5, -1.8329116582843376e-5, -3.0796134506033048e-9,
     3.4651553688036091e-6, -2.0291327396058604e-6, 5.7887928631490037e-7, 2.338630673826657e-13,
     -8.8286007463304835e-8, 4.7435958880408128e-8, -1.2545415020710382e-8, 8.6496488580102925e-14},
    {3.4436760689237767e-4, 5.1717909082605922e-5, -3.3493161081142236e-4, 2.812695154763237e-4, -1.0976582244684731e-4,
     -1.2741009095484485e-7, 2.7744451511563644e-5, -1.8263488805711333e-5, 5.7876949497350524e-6,
     4.9387589339362704e-10, -1.0595367014026043e-6, 6.1667143761104075e-7, -1.7562973359060462e-7,
     -1.2974473287015439e-12, 2.695423606288966e-8, -1.4578352908731271e-8}};
Value temme(Value a, Value x, bool lower) {
  Value sigma = (x - a) / a;
  Value root = sqrt(maximum(log1p_minus(sigma) * -2, 0)), eta = where(gt(sigma, 0), root, -root);
  const double sign = lower ? -1 : 1;
  Value sum = like(a, 0), inverse = 1 / a;
  for (size_t k = kTemme.size(); k-- > 0;) {
    sum = sum * inverse + horner(eta, std::vector<double>(kTemme[k].rbegin(), kTemme[k].rend()));
  }
  return erfc(eta * sqrt(a / 2) * sign) / 2 + exp(a * eta * eta * -0.5) * sum * sign / sqrt(a * (2 * std::numbers::pi));
}

// Where each method is used; the element's arguments there, 1 elsewhere.
struct Region {
  Value here;
  Value a, x;
};
Region region(Value here, Value a, Value x) { return {here, where(here, a, 1), where(here, x, 1)}; }

Value incomplete(Value a, Value x, bool lower) {
  Value apart = abs(x - a) / a;
  Value plain = gt(a, 0) & gt(x, 0) & is_finite(a) & is_finite(x);
  Value near = plain & ((gt(a, 20) & lt(a, 200) & lt(apart, 0.3)) | (gt(a, 200) & lt(apart, 4.5 / sqrt(a))));
  Value rest = plain & !near;
  // Q's own methods, else P's series: igammac chooses by x, igamma where Q is the smaller one.
  Value by_series = where(gt(x, 1.1), lt(x, a), where(le(x, 0.5), lt(-0.4 / log(x), a), lt(x * 1.1, a)));
  Value q_wanted = lower ? gt(x, 1) & gt(x, a) : like(by_series, true);
  Value q_own = q_wanted & !by_series;
  Region t = region(near, a, x), s = region(rest & !q_own, a, x), f = region(rest & q_own & gt(x, 1.1), a, x),
         q = region(rest & q_own & le(x, 1.1), a, x);
  const auto from_p = [&](Value p) { return lower ? p : 1 - p; };
  const auto from_q = [&](Value v) { return lower ? 1 - v : v; };
  Value out = where(s.here, from_p(p_series(s.a, s.x)), like(x, std::nan("")));
  out = where(f.here, from_q(q_fraction(f.a, f.x)), out);
  out = where(q.here, from_q(q_series(q.a, q.x)), out);
  out = where(t.here, temme(t.a, t.x, lower), out);
  // The edges, in terms of P. Negative arguments, 0 and 0, inf and inf stay NaN.
  const double p0 = lower ? 0 : 1, p1 = 1 - p0, inf = HUGE_VAL;
  Value valid = !(lt(a, 0) | lt(x, 0));
  out = where(valid & eq(x, inf) & !eq(a, inf), p1, out);
  out = where(valid & eq(a, inf) & !eq(x, inf), p0, out);
  out = where(valid & ne(a, 0) & eq(x, 0), p0, out);
  return where(valid & eq(a, 0) & gt(x, 0), p1, out);
}

Value igamma(Value a, Value x) {
  auto [p, q] = broadcast_pair("igamma", a, x);
  return incomplete(p, q, true);
}
Value igammac(Value a, Value x) {
  auto [p, q] = broadcast_pair("igammac", a, x);
  return incomplete(p, q, false);
}

}  // namespace

TPU_LOWER_BINARY({
    {{"igamma"}, Rule::Float, igamma},
    {{"igammac"}, Rule::Float, igammac},
});

}  // namespace tpu::lowering
