// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// Converted to the result's dtype first, as PyTorch does; a 0-d tensor is its own scan.
Value scan(Value x, Dim dim, Scan kind) {
  Value a = accumulate(cast(x, result_type().dtype));
  if (x.rank() > 0) a = cumulative(a, dim, kind);
  return convert(a, result_type().dtype);
}

// The extremum so far and its last position; NaN wins over all, as in max.
std::tuple<Value, Value> extreme_so_far(Value x, Dim dim, Scan kind) {
  if (x.rank() == 0) return {x, scalar(graph(), S64, 0)};
  Value best = cumulative(x, dim, kind);
  Value hit = eq(x, best);
  if (is_floating(x.dtype())) hit = hit | is_nan(x);
  Value at = cumulative(where(hit, iota_like(x, dim, S32), 0), dim, Scan::Max);
  return {best, convert(at, S64)};
}

// The larger; of complex numbers the one with the larger real part.
Value dominant(Value a, Value b) { return is_complex(a.dtype()) ? where(lt(real(a), real(b)), b, a) : maximum(a, b); }

// e^(a - b), 1 where both are the same infinity.
Value exp_difference(Value a, Value b) { return exp(where(eq(a, b), 0, a - b)); }

// log sum e^x so far as m + log s, m the dominant x so far and s = sum e^(x - m): of all that only the last
// sum rounds at the size of x. By doubling: after each step m and s cover twice as many.
Value log_cumulative_sum_exp(Value x, int64_t dim) {
  const int64_t n = x.dim(dim);
  Value m = x, s = like(x, 1);
  for (int64_t shift = 1; shift < n; shift *= 2) {
    const auto later = [&](Value v) { return slice_dim(v, dim, shift, n); };
    const auto earlier = [&](Value v) { return slice_dim(v, dim, 0, n - shift); };
    const auto joined = [&](Value v, Value tail) { return concat({slice_dim(v, dim, 0, shift), tail}, dim); };
    Value high = dominant(later(m), earlier(m));
    s = joined(s, later(s) * exp_difference(later(m), high) + earlier(s) * exp_difference(earlier(m), high));
    m = joined(m, high);
  }
  return m + log(s);
}

}  // namespace

TPU_LOWER("cumsum", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Sum); });
TPU_LOWER("cumprod", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Product); });

// cummax allocates values and indices and hands them over.
TPU_LOWER("_cummax_helper", [](Value x, Unused, Unused, Dim dim) { return extreme_so_far(x, dim, Scan::Max); },
          {.no_meta = true});
TPU_LOWER("_cummin_helper", [](Value x, Unused, Unused, Dim dim) { return extreme_so_far(x, dim, Scan::Min); },
          {.no_meta = true});

TPU_LOWER("_logcumsumexp",
          [](Value x, Dim dim) {
            if (x.rank() == 0) return x;
            return convert(log_cumulative_sum_exp(accumulate(x), dim), x.dtype());
          },
          {.no_meta = true});

}  // namespace tpu::lowering
