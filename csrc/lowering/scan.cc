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

// log(e^a + e^b) = max + log1p(e^(min - max)); of complex numbers by their real parts.
Value log_add_exp(Value a, Value b) {
  if (is_complex(a.dtype())) {
    Value swap = lt(real(a), real(b));
    Value high = select(swap, b, a), low = select(swap, a, b);
    Value equal_infinite = eq(real(a), real(b)) & !is_finite(real(a));
    return select(equal_infinite, high, high + log1p(exp(low - high)));
  }
  Value high = maximum(a, b), low = minimum(a, b);
  Value infinite = eq(a, b) & !is_finite(a);   // inf - inf
  return select(infinite, a, high + log1p(exp(low - high)));
}

// Doubling: after step s each element is the sum of the 2^s up to it.
Value log_cumulative_sum_exp(Value x, int64_t dim) {
  const int64_t n = x.dim(dim);
  for (int64_t shift = 1; shift < n; shift *= 2) {
    Value head = slice_dim(x, dim, 0, shift);
    Value sums = log_add_exp(slice_dim(x, dim, shift, n), slice_dim(x, dim, 0, n - shift));
    x = concat({head, sums}, dim);
  }
  return x;
}

}  // namespace

TPU_LOWER("cumsum", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Sum); });
TPU_LOWER("cumprod", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Product); });

// cummax allocates values and indices and hands them over.
TPU_LOWER("_cummax_helper", [](Value x, Unused, Unused, Dim dim) { return extreme_so_far(x, dim, Scan::Max); },
          {.no_meta = true});
TPU_LOWER("_cummin_helper", [](Value x, Unused, Unused, Dim dim) { return extreme_so_far(x, dim, Scan::Min); },
          {.no_meta = true});

TPU_LOWER("_logcumsumexp", [](Value x, Dim dim) {
  if (x.rank() == 0) return x;
  return convert(log_cumulative_sum_exp(accumulate(x), dim), x.dtype());
}, {.no_meta = true});

}  // namespace tpu::lowering
