// SPDX-License-Identifier: Apache-2.0
// Orderings, selection, clamping; what NaN does in each.
#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

// Larger (smaller) of both; NaN if one is.
Value larger(Value x, Value y) { return maximum(x, y); }
Value smaller(Value x, Value y) { return minimum(x, y); }

// NaN only where both are.
template <Value (*f)(Value, Value)>
Value ignoring_nan(Value x, Value y) {
  if (!is_floating(x.dtype())) return f(x, y);
  return where(is_nan(x), y, where(is_nan(y), x, f(x, y)));
}

template <Value (*f)(Arg, Arg)>
Value compared(Value x, Value y) {
  return f(x, y);
}

// NaN counts as true.
Value truth(Value x) { return convert(x, PRED); }

template <Value (*f)(Arg, Arg)>
Value logical(Value x, Value y) {
  return f(truth(x), truth(y));
}

Value clamped(Value x, std::optional<Value> low, std::optional<Value> high) {
  Values all{x};
  if (low) all.push_back(*low);
  if (high) all.push_back(*high);
  const DType t = common_dtype(all);
  Refused{"clamp_cpu", no_order}.check(t);
  Value r = convert(x, t);
  if (low) r = maximum(r, convert(*low, t));
  if (high) r = minimum(r, convert(*high, t));
  return r;
}

}  // namespace

TPU_LOWER_BINARY({
    {{"eq.Tensor", "eq.Scalar"}, Rule::Test, compared<eq>},
    {{"ne.Tensor", "ne.Scalar"}, Rule::Test, compared<ne>},
    {{"lt.Tensor", "lt.Scalar"}, Rule::Test, compared<lt>, {"lt_cpu", no_order}},
    {{"le.Tensor", "le.Scalar"}, Rule::Test, compared<le>, {"le_cpu", no_order}},
    {{"gt.Tensor", "gt.Scalar"}, Rule::Test, compared<gt>, {"gt_cpu", no_order}},
    {{"ge.Tensor", "ge.Scalar"}, Rule::Test, compared<ge>, {"ge_cpu", no_order}},
    {{"maximum"}, Rule::Raw, larger, {"maximum_cpu", no_order}},
    {{"minimum"}, Rule::Raw, smaller, {"minimum_cpu", no_order}},
    {{"fmax"}, Rule::Raw, ignoring_nan<larger>, {"fmax_cpu", no_order}},
    {{"fmin"}, Rule::Raw, ignoring_nan<smaller>, {"fmin_cpu", no_order}},
});

// Each side counts by itself, without a common dtype.
TPU_LOWER("logical_and", logical<operator&>, {.host_scalars = true});
TPU_LOWER("logical_or", logical<operator| >, {.host_scalars = true});
TPU_LOWER("logical_xor", logical<operator^ >, {.host_scalars = true});
TPU_LOWER("logical_not", [](Value x) { return !truth(x); });

TPU_LOWER("where.self",
          [](Value condition, Value x, Value y) {
            const DType t = common_dtype({x, y});
            return where(truth(condition), convert(x, t), convert(y, t));
          },
          {.host_scalars = true});

TPU_LOWER({"masked_fill.Scalar", "masked_fill.Tensor"},
          [](Value self, Value mask, Value value) { return where(mask, cast(value, self.dtype()), self); },
          {.host_scalars = true, .check = check_fits});

// min(max(x, low), high): NaN of any of them shows.
TPU_LOWER({"clamp", "clamp.Tensor"}, clamped, {.host_scalars = true});
TPU_LOWER({"clamp_min", "clamp_min.Tensor"}, [](Value x, Value low) { return clamped(x, low, std::nullopt); },
          {.host_scalars = true});
TPU_LOWER({"clamp_max", "clamp_max.Tensor"}, [](Value x, Value high) { return clamped(x, std::nullopt, high); },
          {.host_scalars = true});

}  // namespace tpu::lowering
