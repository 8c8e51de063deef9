// SPDX-License-Identifier: Apache-2.0
// gather and scatter: one index for each element along a dimension, the other coordinates as they stand.
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

// The part of x that `dims` covers, but for `dim`.
Value box(Value x, const Dims& dims, int64_t dim) {
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != dim) x = slice_dim(x, d, 0, dims[static_cast<size_t>(d)]);
  }
  return x;
}

// Positions in the flattened x of x[i.., index[i..], i..]; x's size, which scatter skips, where the
// index is out of range.
Value flat_positions(Value x, Value index, int64_t dim) {
  const DType t = index_dtype(x.numel());
  Value at = full(x.graph(), {t, index.dims()}, 0);
  int64_t stride = 1;
  for (int64_t d = x.rank(); d-- > 0;) {
    Value along = d == dim ? convert(plain_index(index, x.dim(d)), t) : iota_like(at, d, t);
    at = at + along * stride;
    stride *= x.dim(d);
  }
  Value wrong = lt(index, 0) | ge(index, x.dim(dim));
  return reshape(where(wrong, x.numel(), at), {index.numel()});
}

struct Destination {
  Value flat;  // x, flattened
  Value at;    // positions in it
  Dims dims;   // of x
  Value put(Value updates, const Combine& combine) const { return scatter_rows(flat, at, updates, 0, combine); }
  Value restore(Value y) const { return reshape(y, dims); }
};

Destination target(Value x, Dim dim, Value index) {
  Value y = at_least_1d(x), i = at_least_1d(index);
  check_range(index, 0, y.dim(dim), ErrorKind::Runtime, out_of_bounds(dim, y.dim(dim)));
  return {reshape(y, {y.numel()}), flat_positions(y, i, dim), x.dims()};
}

Value updates_of(Value src, Value index, DType t) {
  Value part = at_least_1d(src);
  const Dims dims = at_least_1d(index).dims();
  return reshape(convert(box(part, dims, -1), t), {numel(dims)});
}

Value scatter_src(Value x, Dim dim, Value index, Value src, const Combine& combine) {
  if (index.numel() == 0) return x;
  const Destination t = target(x, dim, index);
  return t.restore(t.put(updates_of(src, index, x.dtype()), combine));
}

Value scatter_value(Value x, Dim dim, Value index, Value value, const Combine& combine) {
  if (index.numel() == 0) return x;
  const Destination t = target(x, dim, index);
  return t.restore(t.put(broadcast_to(cast(value, x.dtype()), {index.numel()}), combine));
}

}  // namespace

// out[i..] = x[i.., index[i..], i..]
TPU_LOWER("gather",
          [](Value x, Dim dim, Value index, bool) {
            if (index.numel() == 0) return full(x.graph(), result_type(), 0);
            Value y = at_least_1d(x), i = at_least_1d(index);
            check_range(index, 0, y.dim(dim), ErrorKind::Runtime, out_of_bounds(dim, y.dim(dim)));
            return reshape(take_along(box(y, i.dims(), dim), plain_index(i, y.dim(dim)), dim), index.dims());
          },
          {.no_overlap = true});

TPU_LOWER("scatter.src",
          [](Value x, Dim dim, Value index, Value src) { return scatter_src(x, dim, index, src, take_new); },
          {.no_overlap = true});
TPU_LOWER("scatter.value",
          [](Value x, Dim dim, Value index, Value v) { return scatter_value(x, dim, index, v, take_new); },
          {.no_overlap = true});
TPU_LOWER("scatter.reduce",
          [](Value x, Dim dim, Value index, Value src, std::string reduce) {
            return scatter_src(x, dim, index, src, reduction_of(reduce, x.dtype()).combine);
          },
          {.no_overlap = true});
TPU_LOWER("scatter.value_reduce",
          [](Value x, Dim dim, Value index, Value v, std::string reduce) {
            return scatter_value(x, dim, index, v, reduction_of(reduce, x.dtype()).combine);
          },
          {.no_overlap = true});
TPU_LOWER("scatter_add", [](Value x, Dim dim, Value index, Value src) { return scatter_src(x, dim, index, src, add); },
          {.no_overlap = true});

// Where an index stands, x op the sources there; without self only the sources count.
TPU_LOWER("scatter_reduce.two",
          [](Value x, Dim dim, Value index, Value src, std::string reduce, bool include_self) {
            if (index.numel() == 0) return x;
            const bool mean = reduce == "mean";
            const Reduction r = reduction_of(reduce, x.dtype());
            const Destination t = target(x, dim, index);
            Value start = t.flat, count;
            if (!include_self || mean) count = count_indices(t.at, x.numel(), S32);
            if (!include_self) start = where(gt(count, 0), r.neutral, start);
            Value out = scatter_rows(start, t.at, updates_of(src, index, x.dtype()), 0, r.combine);
            if (mean) out = floor_mean(out, include_self ? count + 1 : maximum(count, 1));
            return t.restore(out);
          },
          {.no_overlap = true});

}  // namespace tpu::lowering
