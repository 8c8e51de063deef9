// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numbers>

#include "lowering/promote.h"
#include "lowering/random.h"

// Distributions that need rejection: every element is drawn again until all are accepted.
namespace tpu::lowering {
namespace {

void require_float(DType t, const char* kernel) {
  if (!is_floating(t)) fail(ErrorKind::NotImplemented, '"', kernel, "\" not implemented for '", torch_name(t), "'");
}

// Draws until accepted. `attempt(stream)` gives a candidate and where it is good.
struct Candidate {
  Value value, good;
};
Value draw_until(Random random, uint64_t first_round, Value start, Value done,
                 const std::function<Candidate(Stream)>& attempt) {
  const Values out = while_(
      {scalar(graph(), U64, first_round), start, done}, [](const Values& s) { return any(!s[2], all_dims(s[2])); },
      [&](const Values& s) {
        const Candidate c = attempt(Stream(random).round(s[0]));
        return Values{s[0] + 1, where((!s[2]) & c.good, c.value, s[1]), s[2] | c.good};
      });
  return out[1];
}

// Rounds of the loops of one call start far apart.
constexpr uint64_t kFirst = 1, kSecond = uint64_t{1} << 32;

// Marsaglia and Tsang: d (1 + c z)^3 with d = alpha - 1/3, c = 1 / sqrt(9 d); alpha < 1 through alpha + 1.
Value gamma(Value alpha, Random random) {
  const DType t = alpha.dtype();
  const Dims dims = alpha.dims();
  Value small = lt(alpha, 1);
  Value d = where(small, alpha + 1, alpha) - 1.0 / 3, c = 1 / sqrt(d * 9);
  Value start = where(is_nan(alpha) | lt(alpha, 0), std::nan(""), like(alpha, 0));
  Value sample = draw_until(random, kFirst, start, !gt(alpha, 0), [&](Stream stream) {
    Value z = stream.normal(t, dims), u = stream.uniform_positive(t, dims);
    Value root = 1 + c * z, v = root * root * root;
    return Candidate{d * v, gt(v, 0) & lt(log(u), z * z * 0.5 + d - d * v + d * log(maximum(v, 1e-30)))};
  });
  Value boost = pow(Stream(random).uniform_positive(t, dims), 1 / alpha);
  sample = where(small & gt(alpha, 0), sample * boost, sample);
  return maximum(
      sample, t == F64 ? std::numeric_limits<double>::min() : static_cast<double>(std::numeric_limits<float>::min()));
}

TPU_LOWER("_standard_gamma", [](Value alpha, Random random) {
  require_float(alpha.dtype(), "gamma_cpu");
  return convert(gamma(convert(alpha, random_dtype(alpha.dtype())), random), alpha.dtype());
});

TPU_LOWER("_sample_dirichlet",
          [](Value alpha, Random random) {
            require_float(alpha.dtype(), "dirichlet");
            Value g = gamma(convert(alpha, random_dtype(alpha.dtype())), random);
            return convert(g / sum(g, -1, keep), alpha.dtype());
          },
          {.no_meta = true});

// Below 10: how many uniforms multiply to e^-lambda. From there Hoermann's PTRS.
TPU_LOWER("poisson", [](Value self, Random random) {
  require_float(self.dtype(), "poisson_cpu");
  const DType t = random_dtype(self.dtype());
  Value rate = convert(self, t);
  const Dims dims = rate.dims();
  check_not(any(lt(rate, 0), all_dims(rate)), ErrorKind::Runtime,
            "invalid Poisson rate, expected rate to be non-negative");
  Value small = lt(rate, 10) & gt(rate, 0), large = ge(rate, 10);
  // state: round, log of the product, count
  const Values product = while_(
      {scalar(graph(), U64, kFirst), like(rate, 0), like(rate, -1)},
      [&](const Values& s) { return any(small & gt(s[1], -rate), all_dims(rate)); },
      [&](const Values& s) {
        Value going = small & gt(s[1], -rate);
        Value u = log(Stream(random).round(s[0]).uniform_positive(t, dims));
        return Values{s[0] + 1, where(going, s[1] + u, s[1]), where(going, s[2] + 1, s[2])};
      });
  Value safe = where(large, rate, 10);
  Value b = sqrt(safe) * 2.53 + 0.931, a = b * 0.02483 - 0.059, inverse_alpha = 1.1328 / (b - 3.4) + 1.1239,
        vr = 0.9277 - 3.6224 / (b - 2);
  Value many = draw_until(random, kSecond, like(rate, 0), !large, [&](Stream stream) {
    Value u = stream.uniform(t, dims) - 0.5, v = stream.uniform_positive(t, dims), us = 0.5 - abs(u);
    Value k = floor((a * 2 / us + b) * u + safe + 0.43);
    Value quick = ge(us, 0.07) & le(v, vr);
    Value no = lt(k, 0) | (lt(us, 0.013) & gt(v, us));
    Value bound = k * log(safe) - safe - lgamma(maximum(k, 0) + 1);
    return Candidate{k, quick | ((!no) & le(log(v) + log(inverse_alpha) - log(a / (us * us) + b), bound))};
  });
  Value out = where(large, many, where(small, product[2], 0));
  return convert(where(is_nan(rate), rate, out), self.dtype());
});

// log k! less its Stirling formula
Value stirling_tail(Value k) {
  Value n = k + 1, square = n * n;
  return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / n;
}

// n p below 10: sums of geometric gaps. From there BTRS. p above 1/2 counts the failures.
TPU_LOWER("binomial",
          [](Value count, Value prob, Random random) {
            if (!is_floating(count.dtype()))
              fail(ErrorKind::Value,
                   "binomial only supports floating-point dtypes for count, got: ", torch_name(count.dtype()));
            if (!is_floating(prob.dtype()))
              fail(ErrorKind::Value,
                   "binomial only supports floating-point dtypes for prob, got: ", torch_name(prob.dtype()));
            TPU_CHECK(count.dtype() == prob.dtype(), "Found dtype ", torch_name(prob.dtype()), " but expected ",
                      torch_name(count.dtype()));
            const DType t = random_dtype(count.dtype());
            auto [n, q] = broadcast_pair("binomial", convert(count, t), convert(prob, t));
            const Dims dims = n.dims();
            Value flipped = gt(q, 0.5), p = where(flipped, 1 - q, q);
            Value nan = is_nan(n) | is_nan(q);
            Value trivial = nan | le(n, 0) | le(p, 0);
            Value small = (!trivial) & lt(n * p, 10), large = (!trivial) & ge(n * p, 10);
            // state: round, sum of gaps, successes
            const Values gaps = while_(
                {scalar(graph(), U64, kFirst), like(n, 0), like(n, -1)},
                [&](const Values& s) { return any(small & le(s[1], n), all_dims(n)); },
                [&](const Values& s) {
                  Value going = small & le(s[1], n);
                  Value gap = maximum(ceil(log(Stream(random).round(s[0]).uniform_positive(t, dims)) / log1p(-p)), 1);
                  return Values{s[0] + 1, where(going, s[1] + gap, s[1]), where(going, s[2] + 1, s[2])};
                });
            Value safe_n = where(large, n, 40), safe_p = where(large, p, 0.5);
            Value deviation = sqrt(safe_n * safe_p * (1 - safe_p)), b = deviation * 2.53 + 1.15,
                  a = b * 0.0248 + safe_p * 0.01 - 0.0873;
            Value c = safe_n * safe_p + 0.5, vr = 0.92 - 4.2 / b, r = safe_p / (1 - safe_p),
                  alpha = (5.1 / b + 2.83) * deviation;
            Value m = floor((safe_n + 1) * safe_p);
            Value many = draw_until(random, kSecond, like(n, 0), !large, [&](Stream stream) {
              Value u = stream.uniform(t, dims) - 0.5, v = stream.uniform_positive(t, dims), us = 0.5 - abs(u);
              Value k = floor((a * 2 / us + b) * u + c);
              Value quick = ge(us, 0.07) & le(v, vr), no = lt(k, 0) | gt(k, safe_n);
              Value kk = clip(k, 0, safe_n);
              Value bound = (m + 0.5) * log((m + 1) / (r * (safe_n - m + 1))) +
                            (safe_n + 1) * log((safe_n - m + 1) / (safe_n - kk + 1)) +
                            (kk + 0.5) * log(r * (safe_n - kk + 1) / (kk + 1)) + stirling_tail(m) +
                            stirling_tail(safe_n - m) - stirling_tail(kk) - stirling_tail(safe_n - kk);
              return Candidate{k, quick | ((!no) & le(log(v * alpha / (a / (us * us) + b)), bound))};
            });
            Value successes = where(large, many, where(small, gaps[2], 0));
            successes = where(flipped, maximum(n, 0) - successes, successes);
            return convert(where(nan, std::nan(""), successes), count.dtype());
          },
          {.no_meta = true});

// ---- Choices -----------------------------------------------------------------------------------

// Without replacement (and for one sample): the largest of p / e with exponential e. With: where a
// uniform falls among the running sums, so that no [samples, categories] array of random numbers is needed.
TPU_LOWER("multinomial",
          [](Value self, int64_t samples, bool replacement, Random random) {
            TPU_CHECK(self.rank() == 1 || self.rank() == 2, "prob_dist must be 1 or 2 dim");
            TPU_CHECK(is_floating(self.dtype()),
                      "multinomial only supports floating-point dtypes for input, got: ", torch_name(self.dtype()));
            TPU_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
            const int64_t n = self.dim(self.rank() - 1);
            TPU_CHECK(replacement || samples <= n,
                      "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
            const DType t = random_dtype(self.dtype());
            Value p = self.rank() == 1 ? expand_dims(convert(self, t), 0) : convert(self, t);
            const Dims out_dims = self.rank() == 1 ? Dims{samples} : Dims{self.dim(0), samples};
            if (hlo::numel(out_dims) == 0) return full(graph(), {S64, out_dims}, 0);
            check_not(any(!(is_finite(p) & ge(p, 0)), all_dims(p)), ErrorKind::Runtime,
                      "probability tensor contains either `inf`, `nan` or element < 0");
            check_not(any(le(sum(p, 1), 0), 0), ErrorKind::Runtime,
                      "invalid multinomial distribution (sum of probabilities <= 0)");
            Stream stream(random);
            if (samples == 1 || !replacement) {
              Value key = p / stream.exponential(t, p.dims(), std::ldexp(1.0, -mantissa_digits(t)));
              if (samples == 1) return reshape(argmax(key, 1).index, out_dims);
              Value order =
                  sort({key, iota_like(key, 1, S64)}, 1, true, [](const Values& v) { return gt(v[0], v[1]); })[1];
              return reshape(slice_dim(order, 1, 0, samples), out_dims);
            }
            Value running = cumulative(p, 1, Scan::Sum), total = slice_dim(running, 1, n - 1, n);
            // Below the total, also where the product rounds up to it.
            Value at = stream.uniform(t, {p.dim(0), samples}) * total;
            at = minimum(at, total * (1 - std::ldexp(1.0, 1 - mantissa_digits(t))));
            Value passed = le(expand_dims(running, 1), expand_dims(at, 2));
            return reshape(sum(convert(passed, S64), 2), out_dims);
          },
          {.no_meta = true, .exact_out = true});

// ---- Gradients of samples ----------------------------------------------------------------------

Value horner(Value x, std::initializer_list<Value> coefficients) {
  Value out;
  for (auto c = std::rbegin(coefficients); c != std::rend(coefficients); ++c) out = out ? *c + x * out : *c;
  return out;
}
Value no_nan(Value x) { return where(is_nan(x), 0, x); }

// d sample / d alpha of a gamma variate: PyTorch's three approximations (ATen/native/Distributions.h).
Value gamma_small(Value alpha, Value x) {
  Value numer = like(x, 1), denom = alpha, series1 = 1 / denom, series2 = 1 / (denom * denom);
  for (int i = 1; i <= 5; ++i) {
    numer = numer * -x / i;
    denom = denom + 1;
    series1 = series1 + numer / denom;
    series2 = series2 + numer / (denom * denom);
  }
  Value power = pow(x, alpha), pdf = pow(x, alpha - 1) * exp(-x), cdf = power * series1;
  return no_nan(-((log(x) - digamma(alpha)) * cdf - power * series2) / pdf);
}
Value gamma_large(Value alpha, Value x) {
  Value numer1 = 1 + alpha * 24 * (1 + alpha * 12), square = alpha * alpha;
  Value numer2 = square * 1440 + x * 6 * (53 - x * 120) - x * x * 65 / alpha + alpha * (107 + x * 3600);
  Value close = numer1 * numer2 / (square * square * 1244160);
  Value denom = sqrt(alpha * 8), gap = alpha - x;
  Value term2 = denom / gap, term3 = pow(x - alpha - alpha * log(x / alpha), -1.5);
  Value term1 =
      log(x / alpha) * where(lt(x, alpha), term2 - term3, term2 + term3) - sqrt(2 / alpha) * (alpha + x) / (gap * gap);
  Value stirling = 1 + 1 / (alpha * 12) * (1 + 1 / (alpha * 24));
  return where(le(alpha * 0.9, x) & le(x, alpha * 1.1), close, -stirling * x * term1 / denom);
}
Value gamma_middle(Value alpha, Value x) {
  static constexpr double kUv[3][8] = {
      {0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084},
      {0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623},
      {0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326, 0.00085092367,
       -1.5247877e-07}};
  Value u = log(x / alpha), v = log(alpha);
  Values c;
  for (int i = 0; i < 8; ++i) c.push_back(kUv[0][i] + u * (kUv[1][i] + u * kUv[2][i]));
  return exp(horner(v, {c[0], c[1], c[2], c[3]}) / horner(v, {c[4], c[5], c[6], c[7]}));
}

TPU_LOWER("_standard_gamma_grad",
          [](Value self, Value output) {
            const DType t = random_dtype(self.dtype());
            Value alpha = convert(self, t), x = convert(output, t);
            Value r = where(lt(x, 0.8), gamma_small(alpha, x),
                            where(gt(alpha, 8), gamma_large(alpha, x), gamma_middle(alpha, x)));
            return convert(r, self.dtype());
          },
          {.no_meta = true});

// The same for a beta variate, scaled by 1 / (1 - x): PyTorch's four approximations.
Value beta_alpha_small(Value x, Value alpha, Value beta) {
  Value factor = digamma(alpha) - digamma(alpha + beta) - log(x);
  Value numer = like(x, 1), series = 1 / alpha * (factor + 1 / alpha);
  for (int i = 1; i <= 10; ++i) {
    numer = numer * (i - beta) * x / i;
    Value denom = alpha + i;
    series = series + numer / denom * (factor + 1 / denom);
  }
  return no_nan(x * pow(1 - x, -beta) * series);
}
Value beta_beta_small(Value x, Value alpha, Value beta) {
  Value factor = digamma(alpha + beta) - digamma(beta);
  Value numer = like(x, 1), betas = like(x, 1), dbetas = like(x, 0), series = factor / alpha;
  for (int i = 1; i <= 8; ++i) {
    numer = numer * -x / i;
    dbetas = dbetas * (beta - i) + betas;
    betas = betas * (beta - i);
    series = series + numer / (alpha + i) * (dbetas + factor * betas);
  }
  return no_nan(-pow(1 - x, 1 - beta) * series);
}
Value beta_alpha_mid(Value x, Value alpha, Value beta) {
  Value total = alpha + beta, mean = alpha / total, deviation = sqrt(alpha * beta / (total + 1)) / total,
        b2 = beta * beta;
  Value poly =
      x * 47 * b2 * b2 +
      alpha * ((43 + (16 + beta * 27) * x * 20) * b2 * beta +
               alpha * ((59 + beta * 180 - x * 90) * b2 * 3 + alpha * ((453 + beta * 1620 * (1 - x) - x * 455) * beta +
                                                                       alpha * ((1 - x) * 8 * (beta * 135 - 11)))));
  Value num = (1 + alpha * 12) * (1 + beta * 12) / (total * total);
  Value den = alpha * alpha * alpha * 12960 * b2 * (1 + total * 12);
  Value close = num / (1 - x) * poly / den;
  const auto stirling_of = [](Value v) { return 1 + 1 / (v * 12) + 1 / (v * v * 288); };
  Value prefactor = -x / sqrt(alpha * beta * 2 / total),
        stirling = stirling_of(alpha) * stirling_of(beta) / stirling_of(total);
  Value axbx = alpha * (x - 1) + beta * x;
  Value term1 = (alpha * alpha * 2 * (x - 1) + alpha * beta * (x - 1) - x * b2) /
                (sqrt(alpha * 2 / beta) * pow(total, 1.5) * axbx * axbx);
  Value term2 = log(alpha / (total * x)) * 0.5, term3 = sqrt(alpha * beta * 8 / total) / axbx;
  Value term4 = pow(beta * log(beta / (total * (1 - x))) + alpha * log(alpha / (total * x)), -1.5);
  Value far = stirling * prefactor * (term1 + term2 * (term3 + where(lt(x, mean), term4, -term4)));
  return where(le(mean - deviation * 0.1, x) & le(x, mean + deviation * 0.1), close, far);
}
Value beta_rational(Value x, Value alpha, Value beta, Value total) {
  static constexpr double c[2][3][3][4] = {{{{1.003668233, -0.01061107488, -0.0657888334, 0.01201642863},
                                             {0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033},
                                             {-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013}},
                                            {{0.221950385, -0.3187676331, 0.01799915743, 0.01074823814},
                                             {-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057},
                                             {0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05}},
                                            {{-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565},
                                             {0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181},
                                             {0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05}}},
                                           {{{1, -0.02924021934, -0.04438342661, 0.007285809825},
                                             {0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521},
                                             {-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149}},
                                            {{0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273},
                                             {0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956},
                                             {-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05}},
                                            {{0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05},
                                             {0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05},
                                             {-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06}}}};
  Value u = log(x), a = log(alpha) - u, b = log(total) - a;
  Value pq[2];
  for (int k = 0; k < 2; ++k) {
    pq[k] = like(x, 0);
    for (int i = 2; i >= 0; --i) {
      Value row = like(x, 0);
      for (int j = 2; j >= 0; --j)
        row = row * a + (c[k][i][j][0] + b * (c[k][i][j][1] + b * (c[k][i][j][2] + b * c[k][i][j][3])));
      pq[k] = pq[k] * u + row;
    }
  }
  return pq[0] / pq[1] * (x * (digamma(total) - digamma(alpha)) / beta);
}

TPU_LOWER("_dirichlet_grad",
          [](Value x_, Value alpha_, Value total_) {
            const DType t = random_dtype(x_.dtype());
            Value x = convert(x_, t), alpha = convert(alpha_, t), total = convert(total_, t), beta = total - alpha;
            Value boundary = total * x * (1 - x);
            Value r =
                where(gt(alpha, 6) & gt(beta, 6), beta_alpha_mid(x, alpha, beta), beta_rational(x, alpha, beta, total));
            r = where(ge(x, 0.5) & lt(boundary, 0.75), -beta_beta_small(1 - x, beta, alpha), r);
            r = where(le(x, 0.5) & lt(boundary, 2.5), beta_alpha_small(x, alpha, beta), r);
            return convert(r, x_.dtype());
          },
          {.no_meta = true});

}  // namespace
}  // namespace tpu::lowering
