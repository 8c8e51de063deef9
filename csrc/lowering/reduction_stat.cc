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
struct Moments {
  Value var, mean;
};
}  // namespace

// m = sum x / n; sum |x - m|^2 / max(n - correction, 0)
static Moments moments(Value x, const hlo::Axes& dims, std::optional<double> correction, bool keep_dims) {
  TPU_CHECK(is_floating(x.dtype()) || is_complex(x.dtype()),
            "std and var only support floating point and complex dtypes");
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
    return maximum(max(a, dims, keep_dims), 0);  // of nothing: 0
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
TPU_LOWER("norm.ScalarOpt_dim",
          [](Value x, std::optional<double> p, Axes dims, bool keep_dims) { return norm(x, p, dims, keep_dims); });
TPU_LOWER("norm.ScalarOpt_dim_dtype", [](Value x, std::optional<double> p, Axes dims, bool keep_dims,
                                         std::optional<DType>) { return norm(x, p, dims, keep_dims); });
TPU_LOWER("norm.ScalarOpt_dtype",
          [](Value x, std::optional<double> p, std::optional<DType>) { return norm(x, p, all_dims(x), false); });

// |a - b|_p
TPU_LOWER("dist", [](Value a, Value b, double p) {
  const DType t = common_dtype({a, b});
  return convert(vector_norm(accumulate(convert(a, t)) - accumulate(convert(b, t)), p,
                             all_dims(full(graph(), {PRED, broadcast_dims(a.dims(), b.dims(), "dist")}, false)), false),
                 result_type().dtype);
});

// Slices along dim whose norm is above the limit are scaled down to it.
TPU_LOWER("renorm", [](Value x, double p, Dim dim, Value max_norm) {
  Value a = accumulate(x);
  Dims others;
  for (int64_t d : all_dims(x)) {
    if (d != dim) others.push_back(d);
  }
  Value norms = vector_norm(a, p, others, keep), limit = cast(max_norm, norms.dtype());
  Value factor = where(gt(norms, limit), limit / (norms + 1e-7), 1);
  return convert(a * convert(factor, a.dtype()), x.dtype());
});

// ---- Distances ---------------------------------------------------------------------------------

// Of each row of a [..., n, m] to each of b [..., r, m], through one product:
// |a|^2 + |b|^2 - 2 ab. Faster than differences, and less exact for close rows.
static Value euclidean(Value a, Value b) {
  Value product = batch_matmul(a, swap_dims(b, -1, -2), {}, Precision::HIGHEST);
  Value aa = sum(a * a, -1, keep), bb = swap_dims(sum(b * b, -1, keep), -1, -2);
  return sqrt(maximum(aa + bb - product * 2, 0));
}
TPU_LOWER("_euclidean_dist", [](Value a, Value b) { return euclidean(a, b); });

static Value with_batch(Value x, const Dims& batch) {
  Dims dims = batch;
  dims.insert(dims.end(), x.dims().end() - 2, x.dims().end());
  return broadcast_to(x, dims);
}
static Dims batch_of(Value x) { return Dims(x.dims().begin(), x.dims().end() - 2); }

// compute_mode 0: products where a side has more than 25 rows; 1: always; 2: never.
TPU_LOWER("_cdist_forward", [](Value a, Value b, double p, std::optional<int64_t> mode) {
  const Dims batch = broadcast_dims(batch_of(a), batch_of(b), "cdist");
  Value x = with_batch(a, batch), y = with_batch(b, batch);
  const int64_t r = x.rank() - 2, m = x.dim(r + 1);
  if (x.dim(r) == 0 || y.dim(r) == 0 || m == 0) return full(graph(), result_type(), 0);
  const bool product = mode.value_or(0) == 1 || (mode.value_or(0) == 0 && (x.dim(r) > 25 || y.dim(r) > 25));
  if (p == 2 && product) return euclidean(x, y);
  return vector_norm(expand_dims(x, r + 1) - expand_dims(y, r), p, -1, false);
});

// sum_j g_ij d|x_i - y_j|_p / dx_i, distances given. Where one is 0, so is its part.
static Value distance_gradient(Value g, Value x, Value y, double p, Value distance) {
  const int64_t r = x.rank() - 2;
  Value d = expand_dims(x, r + 1) - expand_dims(y, r);  // [..., n, r, m]
  Value weight = expand_dims(g, r + 2), dist = expand_dims(distance, r + 2);
  Value zero = eq(dist, 0);
  Value part;
  if (p == 0) return zeros_like(x);
  if (p == 1) {
    part = sign(d) * weight;
  } else if (p == 2) {
    part = d * where(zero, 0, weight / dist);
  } else if (std::isinf(p)) {
    part = sign(d) * where(eq(abs(d), dist), weight, 0);
  } else {
    Value power = p < 2 ? sign(d) * pow(abs(d), p - 1) : d * pow(abs(d), p - 2);
    if (p < 1) power = where(eq(d, 0), 0, power);
    part = where(zero, 0, power * (weight / pow(dist, p - 1)));
  }
  return sum(part, r + 1);
}
TPU_LOWER("_cdist_backward", [](Value g, Value a, Value b, double p, Value distance) {
  if (g.numel() == 0) return full(graph(), result_type(), 0);
  const Dims batch = broadcast_dims(batch_of(a), batch_of(b), "cdist");
  return distance_gradient(with_batch(g, batch), with_batch(a, batch), with_batch(b, batch), p,
                           with_batch(distance, batch));
});

// Pairs i < j of n rows in order: pair k starts row i at k = i (2n - i - 1) / 2.
static Value row_start(Value i, int64_t n) { return i * (2 * n - 1 - i) / 2; }

TPU_LOWER("_pdist_forward", [](Value x, double p) {
  const int64_t n = x.dim(0), pairs = n * (n - 1) / 2;
  if (pairs <= 0) return full(graph(), result_type(), 0);
  if (x.dim(1) == 0) return full(graph(), {x.dtype(), {pairs}}, 0);
  Value k = iota(graph(), {S32, {pairs}}, 0);
  Value i = search_sorted(row_start(iota(graph(), {S32, {n}}, 0), n), k, true) - 1;
  Value j = k - row_start(i, n) + i + 1;
  return vector_norm(take(x, i, 0) - take(x, j, 0), p, 1, false);
});
TPU_LOWER("_pdist_backward", [](Value g, Value x, double p, Value distance) {
  const int64_t n = x.dim(0);
  if (n <= 1 || x.numel() == 0) return zeros_like(x);
  const Type square{S32, {n, n}};
  Value i = iota(graph(), square, 0), j = iota(graph(), square, 1);
  Value low = minimum(i, j), k = row_start(low, n) + maximum(i, j) - low - 1;
  const auto spread = [&](Value v) { return where(eq(i, j), 0, take(v, clip(k, 0, v.numel() - 1), 0)); };
  return distance_gradient(spread(g), x, x, p, spread(distance));
});

// a_1 b_2 - a_2 b_1, and so on round
TPU_LOWER("linalg_cross", [](Value a, Value b, int64_t dim) {
  const DType t = result_type().dtype;
  Value x = broadcast_to(convert(a, t), result_type().dims), y = broadcast_to(convert(b, t), result_type().dims);
  const auto turned = [&](Value v, int64_t by) {
    return concat({slice_dim(v, dim, by, 3), slice_dim(v, dim, 0, by)}, dim);
  };
  return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1);
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
