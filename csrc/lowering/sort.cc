// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// Whether a comes before b: NaN is larger than all numbers.
Value before(Value a, Value b, bool descending) {
  if (descending) std::swap(a, b);
  Value less = lt(a, b);
  return is_floating(a.dtype()) ? less | (is_nan(b) & !is_nan(a)) : less;
}

}  // namespace

Sorted sorted(Value x, int64_t dim, bool descending) {
  if (x.rank() == 0) return {x, scalar(graph(), S64, 0)};
  const DType index = x.dim(dim) <= INT32_MAX ? S32 : S64;
  const Values out = sort({x, iota_like(x, dim, index)}, dim, /*stable=*/true,
                          [&](const Values& v) { return before(v[0], v[1], descending); });
  return {out[0], convert(out[1], S64)};
}

TPU_LOWER("sort", [](Value x, Dim dim, bool descending) {
  const Sorted s = sorted(x, dim, descending);
  return std::tuple(s.values, s.indices);
});
TPU_LOWER("sort.stable", [](Value x, Unused, Dim dim, bool descending) {
  const Sorted s = sorted(x, dim, descending);
  return std::tuple(s.values, s.indices);
});

TPU_LOWER("topk", [](Value x, int64_t k, Dim dim, bool largest, Unused) {
  const Sorted s = sorted(x, dim, largest);
  if (x.rank() == 0) return std::tuple(s.values, s.indices);
  return std::tuple(slice_dim(s.values, dim, 0, k), slice_dim(s.indices, dim, 0, k));
});

}  // namespace tpu::lowering
