// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

Value real_cast(Value x, DType t) { return is_complex(x.dtype()) ? cast(x, complex_of(t)) : accumulate(cast(x, t)); }

}  // namespace

// ---- Variance ----------------------------------------------------------------------------------

namespace {
struct Moments { Value var, mean; };
}

// m = sum x / n; sum |x - m|^2 / max(n - correction, 0)
static Moments moments(Value x, const hlo::Axes& dims, std::optional<double> correction, bool keep_dims) {
  Value a = accumulate(x);
  const auto n = static_cast<double>(count(x, dims));
  Value m = sum(a, dims, keep) / n;
  Value d = a - m;
  Value squares = is_complex(d.dtype()) ? real(d) * real(d) + imag(d) * imag(d) : d * d;
  Value v = sum(squares, dims, keep_dims) / std::max(n - correction.value_or(1), 0.0);
  return {v, reshape(m, v.dims())};
}

TPU_LOWER("var.correction", [](Value x, Axes dims, std::optional<double> correction, bool keep_dims) {
  return convert(moments(x, dims, correction, keep_dims).var, result_type().dtype);
});
TPU_LOWER("std.correction", [](Value x, Axes dims, std::optional<double> correction, bool keep_dims) {
  return convert(sqrt(moments(x, dims, correction, keep_dims).var), result_type().dtype);
});
TPU_LOWER("var_mean.correction", [](Value x, Axes dims, std::optional<double> correction, bool keep_dims) {
  const Moments m = moments(x, dims, correction, keep_dims);
  return std::tuple(convert(m.var, result_type(0).dtype), convert(m.mean, result_type(1).dtype));
});
TPU_LOWER("std_mean.correction", [](Value x, Axes dims, std::optional<double> correction, bool keep_dims) {
  const Moments m = moments(x, dims, correction, keep_dims);
  return std::tuple(convert(sqrt(m.var), result_type(0).dtype), convert(m.mean, result_type(1).dtype));
});

// ---- Norms -------------------------------------------------------------------------------------

Value vector_norm(Value x, double p, const hlo::Axes& dims, bool keep_dims) {
  if (p == 0) return sum(convert(convert(x, PRED), real_of(x.dtype())), dims, keep_dims);
  if (p == 2 && count(x, dims) != 1) {
    Value squares = is_complex(x.dtype()) ? real(x) * real(x) + imag(x) * imag(x) : x * x;
    return sqrt(sum(squares, dims, keep_dims));
  }
  Value a = abs(x);
  if (p == 1 || count(x, dims) == 1) return sum(a, dims, keep_dims);
  if (std::isinf(p)) {
    if (p < 0) return min(a, dims, keep_dims);
    return maximum(max(a, dims, keep_dims), 0);   // of nothing: 0
  }
  return pow(sum(pow(a, p), dims, keep_dims), 1 / p);
}

// Computed in dtype= (or the operand's), which meta has reduced to a real one for the result.
static Value norm(Value x, std::optional<double> p, const hlo::Axes& dims, bool keep_dims) {
  return convert(vector_norm(real_cast(x, result_type().dtype), p.value_or(2), dims, keep_dims), result_type().dtype);
}

TPU_LOWER("linalg_vector_norm", [](Value x, double p, Axes dims, bool keep_dims, std::optional<DType>) {
  return norm(x, p, dims, keep_dims);
});
TPU_LOWER("norm.Scalar", [](Value x, double p) { return norm(x, p, all_dims(x), false); });
TPU_LOWER("norm.ScalarOpt_dim", [](Value x, std::optional<double> p, Axes dims, bool keep_dims) {
  return norm(x, p, dims, keep_dims);
});
TPU_LOWER("norm.ScalarOpt_dim_dtype", [](Value x, std::optional<double> p, Axes dims, bool keep_dims, std::optional<DType>) {
  return norm(x, p, dims, keep_dims);
});
TPU_LOWER("norm.ScalarOpt_dtype", [](Value x, std::optional<double> p, std::optional<DType>) {
  return norm(x, p, all_dims(x), false);
});

// log sum_j e^(x_j - m) + m; m = max x, or 0 where that is infinite
TPU_LOWER("logsumexp", [](Value x, Axes dims, bool keep_dims) {
  Value a = accumulate(cast(x, result_type().dtype));
  Value m = max(real(a), dims, keep);
  m = where(is_finite(m) | is_nan(m), m, 0);
  if (is_complex(a.dtype())) m = convert(m, a.dtype());
  Value s = log(sum(exp(a - m), dims, keep_dims));
  return convert(s + reshape(m, s.dims()), result_type().dtype);
});

}  // namespace tpu::lowering
