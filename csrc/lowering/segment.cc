// SPDX-License-Identifier: Apache-2.0
// segment_reduce: each stretch of an axis reduced to one element.
#include <cmath>

#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

struct Segments {
  int64_t outer, length, count, inner;  // data is [outer, length, inner], the result [outer, count, inner]
  Value at;                             // S32 [outer * length]: row of the result, or outer * count where in none
  Value sizes;                          // S32 [outer * count]
};

// Position i lies in the segment before which as many segments end as are at or below i.
Segments segments_of(Value data, int64_t axis, std::optional<Value> lengths, std::optional<Value> offsets, bool check) {
  TPU_CHECK(lengths || offsets, "segment_reduce(): Either lengths or offsets must be defined.");
  const int64_t d = wrap_dim(axis, data.rank(), "segment_reduce");
  Segments s{1, data.dim(d), 0, 1, {}, {}};
  for (int64_t i = 0; i < data.rank(); ++i) (i < d ? s.outer : i > d ? s.inner : s.count) *= i == d ? 0 : data.dim(i);
  Value ends;
  if (lengths) {
    Value l = convert(*lengths, S64);
    s.count = l.dim(l.rank() - 1);
    if (check && l.numel() > 0) {
      check_not(any(lt(l, 0), all_dims(l)), ErrorKind::Runtime, "lengths contains negative value!");
      check_not(any(ne(sum(l, l.rank() - 1), s.length), Dims(all_dims(sum(l, l.rank() - 1)))), ErrorKind::Runtime,
                text("Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."));
    }
    ends = cumulative(l, -1, Scan::Sum);
  } else {
    Value o = convert(*offsets, S64);
    s.count = o.dim(o.rank() - 1) - 1;
    ends = slice_dim(o, -1, 1, s.count + 1);
  }
  ends = reshape(ends, {s.outer, 1, s.count});
  Value position = iota(data.graph(), {S64, {s.outer, s.length, s.count}}, 1);
  Value segment = sum(convert(le(ends, position), S32), 2);
  Value row = segment + iota_like(segment, 0, S32) * s.count;
  s.at = reshape(where(eq(segment, s.count), s.outer * s.count, row), {s.outer * s.length});
  s.sizes = count_indices(s.at, s.outer * s.count, S32);
  return s;
}

Reduction reduction(const std::string& name, DType t) {
  return reduction_of(name == "max" ? "amax" : name == "min" ? "amin" : name, t);
}

Value rows_of(Value v, const Segments& s, int64_t rows) { return reshape(v, {s.outer * rows, s.inner}); }

Value per_row(Value sizes, const Segments& s, DType t) {
  return broadcast_along(convert(sizes, t), {s.outer * s.count, s.inner}, 0);
}

// What each data row's segment holds; rows in no segment get the last one's, to be masked.
Value spread(Value by_segment, const Segments& s) { return take(by_segment, minimum(s.at, s.outer * s.count - 1), 0); }

}  // namespace

TPU_LOWER("segment_reduce",
          [](Value data, std::string reduce, std::optional<Value> lengths, std::optional<Value> indices,
             std::optional<Value> offsets, int64_t axis, bool unsafe, std::optional<Value> initial) {
            TPU_CHECK(!indices, "segment_reduce(): indices based reduction is not supported yet.");
            const Type& out = result_type();
            const Segments s = segments_of(data, axis, lengths, offsets, !unsafe);
            if (out.numel() == 0) return full(data.graph(), out, 0);
            Value v = accumulate(data);
            const Reduction r = reduction(reduce, v.dtype());
            const Type type{v.dtype(), {s.outer * s.count, s.inner}};
            Value start =
                initial ? broadcast_to(cast(*initial, v.dtype()), type.dims) : full(v.graph(), type, r.neutral);
            Value y = scatter_rows(start, s.at, rows_of(v, s, s.length), 0, r.combine);
            if (reduce == "mean") {
              Value n = per_row(s.sizes, s, y.dtype());
              y = where(eq(n, 0), initial ? y : full(y.graph(), type, NAN), y / n);
            }
            return reshape(convert(y, out.dtype), out.dims);
          },
          {.host_tensors = true});

// sum: dy; mean: dy / n; max, min: dy shared by the equals; prod: dy times the other factors
TPU_LOWER("_segment_reduce_backward",
          [](Value dy, Value y, Value data, std::string reduce, std::optional<Value> lengths,
             std::optional<Value> offsets, int64_t axis, std::optional<Value> initial) {
            const Segments s = segments_of(data, axis, lengths, offsets, false);
            if (data.numel() == 0 || dy.numel() == 0) return full(data.graph(), data.type(), 0);
            const DType t = compute_dtype(data.dtype());
            const auto zeros = [&] { return full(data.graph(), {t, {s.outer * s.count, s.inner}}, 0); };
            Value g = rows_of(convert(dy, t), s, s.count), x = rows_of(convert(data, t), s, s.length);
            Value each = spread(g, s);
            if (reduce == "mean") {
              each = spread(g / maximum(per_row(s.sizes, s, t), 1), s);
            } else if (reduce == "max" || reduce == "min") {
              Value best = spread(rows_of(convert(y, t), s, s.count), s);
              Value hit = convert(eq(x, best) | is_nan(x), t);
              each = hit * each / maximum(spread(scatter_rows(zeros(), s.at, hit, 0, add), s), 1);
            } else if (reduce == "prod") {
              Value is_zero = eq(x, 0);
              Value start = initial ? broadcast_to(cast(*initial, t), zeros().dims()) : like(zeros(), 1);
              Value others = scatter_rows(start, s.at, where(is_zero, 1, x), 0, multiply);
              Value zero_count = spread(scatter_rows(zeros(), s.at, convert(is_zero, t), 0, add), s);
              Value rest = where(is_zero, where(eq(zero_count, 1), spread(others, s), 0),
                                 where(eq(zero_count, 0), spread(others, s) / x, 0));
              each = each * rest;
            }
            each = where(broadcast_along(eq(s.at, s.outer * s.count), each.dims(), 0), 0, each);
            return reshape(convert(each, data.dtype()), data.dims());
          },
          {.host_tensors = true});

}  // namespace tpu::lowering
