// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// Up to this many boundaries, comparing with all of them beats the steps of a search.
constexpr int64_t kCompareAll = 64;

// Whether the place for v lies after a boundary: the first not below v, or with `right` the first above v.
Value lies_after(Value boundary, Value v, bool right) { return !(right ? gt(boundary, v) : ge(boundary, v)); }

// Halving: the place is in [low, high).
Value binary_search(Value sequence, Value v, bool right) {
  const int64_t n = sequence.dim(sequence.rank() - 1), last = v.rank() - 1;
  Value low = full(graph(), {S32, v.dims()}, 0), high = full(graph(), {S32, v.dims()}, n);
  int64_t steps = 1;
  while ((int64_t{1} << steps) <= n) ++steps;
  const auto unfinished = [&](const Values& state) { return lt(state[0], steps); };
  const auto halve = [&](const Values& state) {
    Value lo = state[1], hi = state[2];
    Value mid = lo + ((hi - lo) >> 1);
    Value boundary = sequence.rank() == 1 ? take(sequence, mid, 0) : take_along(sequence, mid, last);
    Value after = lt(lo, hi) & lies_after(boundary, v, right);
    return Values{state[0] + 1, select(after, mid + 1, lo), select(after, hi, mid)};
  };
  return while_({scalar(graph(), S32, 0), low, high}, unfinished, halve)[1];
}

}  // namespace

Value search_sorted(Value sequence, Value v, bool right) {
  const int64_t n = sequence.dim(sequence.rank() - 1);
  if (n == 0 || v.numel() == 0) return full(graph(), {S32, v.dims()}, 0);
  if (n > kCompareAll) return binary_search(sequence, v, right);
  Value all = sequence.rank() == 1 ? sequence : expand_dims(sequence, sequence.rank() - 1);
  return sum(convert(lies_after(all, expand_dims(v, v.rank()), right), S32), -1);
}

namespace {

// sorter: the order of an unsorted sequence.
Value search(Value sequence, Value v, bool right, const std::optional<std::string>& side,
             const std::optional<Value>& sorter) {
  if (side) {
    TPU_CHECK(*side == "left" || *side == "right", "side can only be 'left' or 'right' but got ", *side);
    TPU_CHECK(!right || *side == "right", "side and right can't be set to opposites, got side of ", *side,
              " while right was True");
    right = *side == "right";
  }
  if (sorter && sequence.numel() > 0) sequence = take_along(sequence, *sorter, sequence.rank() - 1);
  Value a = accumulate(sequence);
  return convert(search_sorted(a, cast(v, a.dtype()), right), result_type().dtype);
}

Value bucket_of(Value v, Value boundaries, bool right) {
  TPU_CHECK(boundaries.rank() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.rank(), ")");
  return search(boundaries, v, right, {}, {});
}

}  // namespace

TPU_LOWER("searchsorted.Tensor",
          [](Value sequence, Value v, bool /*out_int32: the result's dtype*/, bool right,
             std::optional<std::string> side,
             std::optional<Value> sorter) { return search(sequence, v, right, side, sorter); },
          {.host_scalars = true});
TPU_LOWER("searchsorted.Scalar",
          [](Value sequence, Value v, bool /*out_int32*/, bool right, std::optional<std::string> side,
             std::optional<Value> sorter) { return search(sequence, v, right, side, sorter); });
TPU_LOWER("bucketize.Tensor",
          [](Value v, Value boundaries, bool /*out_int32*/, bool right) { return bucket_of(v, boundaries, right); },
          {.host_scalars = true});
TPU_LOWER("bucketize.Scalar",
          [](Value v, Value boundaries, bool /*out_int32*/, bool right) { return bucket_of(v, boundaries, right); });

// ---- Membership --------------------------------------------------------------------------------

// Few candidates: compare with each. Many: find each element's place among them in order.
static Value is_in(Value elements, Value candidates, bool invert) {
  const DType t = common_dtype({elements, candidates});
  Value x = convert(elements, t), set = reshape(convert(candidates, t), {candidates.numel()});
  Value found;
  if (set.numel() == 0 || x.numel() == 0) {
    found = full(graph(), {PRED, x.dims()}, false);
  } else if (set.numel() <= kCompareAll || is_complex(t)) {
    found = any(eq(expand_dims(x, x.rank()), set), -1);
  } else {
    set = sorted(accumulate(set), 0, false).values;
    Value v = accumulate(x);
    Value place = minimum(search_sorted(set, v, false), set.numel() - 1);
    found = eq(take(set, place, 0), v);
  }
  return invert ? !found : found;
}
TPU_LOWER("isin.Tensor_Tensor", [](Value x, Value set, Unused, bool invert) { return is_in(x, set, invert); });
TPU_LOWER("isin.Tensor_Scalar", [](Value x, Value set, Unused, bool invert) { return is_in(x, set, invert); });
TPU_LOWER("isin.Scalar_Tensor", [](Value x, Value set, Unused, bool invert) { return is_in(x, set, invert); });

}  // namespace tpu::lowering
