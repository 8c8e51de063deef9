// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {

int64_t count(Value x, const hlo::Axes& dims) {
  int64_t n = 1;
  for (int64_t d : dims.of(x.rank(), "count")) n *= x.dim(d);
  return n;
}

void need_elements(Value x, int64_t dim, const char* op) {
  if (x.rank() == 0 || x.dim(dim) > 0) return;
  fail(ErrorKind::Index, op, "(): Expected reduction dim ", dim, " to have non-zero size.");
}

namespace {

// Converted to the result's dtype first, as PyTorch does: int and bool sums count in int64.
Value operand(Value x) { return accumulate(cast(x, result_type().dtype)); }
Value finish(Value x) { return convert(x, result_type().dtype); }

// nan_to_num(x, 0): the numbers among x.
Value numbers(Value x) { return is_floating(x.dtype()) ? where(is_nan(x), 0, x) : x; }

}  // namespace

// ---- Sums and products -------------------------------------------------------------------------

TPU_LOWER("sum", [](Value x, std::optional<DType>) { return finish(sum(operand(x), all_dims(x))); });
TPU_LOWER("sum.dim_IntList", [](Value x, Axes dims, bool keep_dims, std::optional<DType>) {
  return finish(sum(operand(x), dims, keep_dims));
});
TPU_LOWER("nansum", [](Value x, Axes dims, bool keep_dims, std::optional<DType>) {
  return finish(sum(numbers(operand(x)), dims, keep_dims));
});
TPU_LOWER("prod", [](Value x, std::optional<DType>) { return finish(prod(operand(x), all_dims(x))); });
TPU_LOWER("prod.dim_int", [](Value x, Dim dim, bool keep_dims, std::optional<DType>) {
  return finish(prod(operand(x), along(x, dim), keep_dims));
});

static Value mean(Value x, const hlo::Axes& dims, bool keep_dims) {
  const auto n = static_cast<double>(count(x, dims));
  return finish(sum(operand(x), dims, keep_dims) / n);
}
TPU_LOWER("mean", [](Value x, std::optional<DType>) { return mean(x, all_dims(x), false); });
TPU_LOWER("mean.dim",
          [](Value x, Axes dims, bool keep_dims, std::optional<DType>) { return mean(x, dims, keep_dims); });

TPU_LOWER("count_nonzero", [](Value x, std::optional<int64_t> dim) {
  return sum(convert(convert(x, PRED), S64), dim && x.rank() > 0 ? hlo::Axes(*dim) : hlo::Axes(all_dims(x)));
});
TPU_LOWER("count_nonzero.dim_IntList", [](Value x, Axes dims) { return sum(convert(convert(x, PRED), S64), dims); });

// sum_i x_ii
TPU_LOWER("trace", [](Value x) {
  Value a = operand(x);
  return finish(sum(where(eq(iota_like(a, 0, S32), iota_like(a, 1, S32)), a, 0), {0, 1}));
});

// ---- Logic: uint8 gives uint8, the rest bool -----------------------------------------------------

// An empty list of dims reduces nothing, none reduces all.
static hlo::Axes listed(Value x, const std::optional<Dims>& dims) {
  if (!dims) return all_dims(x);
  return x.rank() == 0 ? Dims{} : *dims;
}
TPU_LOWER("any", [](Value x) { return finish(any(x, all_dims(x))); });
TPU_LOWER("any.dim", [](Value x, Dim dim, bool keep_dims) { return finish(any(x, along(x, dim), keep_dims)); });
TPU_LOWER("any.dims",
          [](Value x, std::optional<Dims> dims, bool keep_dims) { return finish(any(x, listed(x, dims), keep_dims)); });
TPU_LOWER("all", [](Value x) { return finish(all(x, all_dims(x))); });
TPU_LOWER("all.dim", [](Value x, Dim dim, bool keep_dims) { return finish(all(x, along(x, dim), keep_dims)); });
TPU_LOWER("all.dims",
          [](Value x, std::optional<Dims> dims, bool keep_dims) { return finish(all(x, listed(x, dims), keep_dims)); });

// ---- Extrema -----------------------------------------------------------------------------------

// m = max x; the first i with x_i = m, or with x_i = NaN, which makes m NaN.
Extreme first_extreme(Value x, int64_t dim, bool keep_dims, bool largest) {
  if (x.rank() == 0) return {x, scalar(graph(), S64, 0)};
  if (!call().target->plain_extremes) return largest ? argmax(x, dim, keep_dims) : argmin(x, dim, keep_dims);
  // Two plain reductions become vector code on the CPU, one of pairs does not.
  Value m = largest ? max(x, dim, keep) : min(x, dim, keep);
  Value hit = eq(x, m);
  if (is_floating(x.dtype())) hit = hit | is_nan(x);
  const DType index = x.dim(dim) <= INT32_MAX ? S32 : S64;
  Value first = min(where(hit, iota_like(x, dim, index), highest(graph(), index)), dim, keep_dims);
  first = clip(first, 0, std::max<int64_t>(x.dim(dim) - 1, 0));  // tells hlo/bounds.h what it is
  return {reshape(m, first.dims()), convert(first, S64)};
}

TPU_LOWER("amax", [](Value x, Axes dims, bool keep_dims) { return max(x, dims, keep_dims); });
TPU_LOWER("amin", [](Value x, Axes dims, bool keep_dims) { return min(x, dims, keep_dims); });
static void need_any(Value x, const char* op) {
  TPU_CHECK(x.numel() > 0, op, "(): Expected reduction dim to be specified for input.numel() == 0. ",
            "Specify the reduction dim with the 'dim' argument.");
}
TPU_LOWER("max", [](Value x) {
  need_any(x, "max");
  return max(x, all_dims(x));
});
TPU_LOWER("min", [](Value x) {
  need_any(x, "min");
  return min(x, all_dims(x));
});
TPU_LOWER("aminmax",
          [](Value x, std::optional<int64_t> dim, bool keep_dims) {
            const hlo::Axes dims = dim && x.rank() > 0 ? hlo::Axes(*dim) : hlo::Axes(all_dims(x));
            return std::tuple(min(x, dims, keep_dims), max(x, dims, keep_dims));
          },
          {.exact_out = true});
TPU_LOWER("_aminmax", [](Value x) { return std::tuple(min(x, all_dims(x)), max(x, all_dims(x))); });
TPU_LOWER("_aminmax.dim", [](Value x, Dim dim, bool keep_dims) {
  return std::tuple(min(x, along(x, dim), keep_dims), max(x, along(x, dim), keep_dims));
});

TPU_LOWER("max.dim", [](Value x, Dim dim, bool keep_dims) {
  need_elements(x, dim, "max");
  const Extreme e = first_extreme(x, dim, keep_dims, true);
  return std::tuple(e.value, e.index);
});
TPU_LOWER("min.dim", [](Value x, Dim dim, bool keep_dims) {
  need_elements(x, dim, "min");
  const Extreme e = first_extreme(x, dim, keep_dims, false);
  return std::tuple(e.value, e.index);
});

static Value arg_extreme(Value x, std::optional<int64_t> dim, bool keep_dims, bool largest) {
  if (dim) return first_extreme(x, x.rank() == 0 ? 0 : wrap_dim(*dim, x.rank(), "argmax"), keep_dims, largest).index;
  return reshape(first_extreme(reshape(x, {x.numel()}), 0, false, largest).index, result_type().dims);
}
TPU_LOWER("argmax",
          [](Value x, std::optional<int64_t> dim, bool keep_dims) { return arg_extreme(x, dim, keep_dims, true); });
TPU_LOWER("argmin",
          [](Value x, std::optional<int64_t> dim, bool keep_dims) { return arg_extreme(x, dim, keep_dims, false); });

}  // namespace tpu::lowering
