// SPDX-License-Identifier: Apache-2.0
// The device's part of operators whose output size depends on data: counts, and results padded to a
// given size. aten/sized.cc reads the count and cuts the padding off.
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

Value flat_mask(Value x) { return reshape(ne(x, 0), {x.numel()}); }

// Row-major coordinates of flat positions, a column for each dimension. They are where they should be anyway: clip()
// lets that be known, so that they needn't be checked as indices (hlo/bounds.h).
Values coordinates(Value position, const Dims& dims) {
  Values columns(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    const int64_t size = std::max<int64_t>(dims[d], 1);
    columns[d] = convert(clip(d == 0 ? position : position % size, 0, size - 1), S64);
    position = position / size;
  }
  return columns;
}

// Padding repeats a position that is in range.
Value padded_positions(Value x, int64_t size) {
  return minimum(true_positions(flat_mask(x), size), std::max<int64_t>(x.numel() - 1, 0));
}

}  // namespace

TPU_LOWER("tpu::count_true", [](Value x) { return sum(convert(flat_mask(x), S64), 0); }, {.no_meta = true});

TPU_LOWER("tpu::nonzero_padded",
          [](Value x, int64_t size) {
            if (x.rank() == 0) return full(x.graph(), {S64, {size, 0}}, 0);
            return stack(coordinates(padded_positions(x, size), x.dims()), 1);
          },
          {.no_meta = true});

TPU_LOWER("tpu::mask_positions",
          [](Value mask, int64_t size) { return coordinates(padded_positions(mask, size), mask.dims()); },
          {.no_meta = true});

// An x that broadcasts is read by coordinates: it needs no copy in the mask's shape.
TPU_LOWER("tpu::masked_select_padded",
          [](Value x, Value mask, int64_t size) {
            const Dims dims = broadcast_dims(x.dims(), mask.dims(), "masked_select");
            if (size == 0) return full(x.graph(), {x.dtype(), {0}}, 0);
            Value position = padded_positions(broadcast_to(mask, dims), size);
            if (x.dims() == dims) return take(reshape(x, {x.numel()}), position, 0);
            Values at = coordinates(position, dims);
            at.erase(at.begin(), at.end() - x.rank());
            OptValues indices;
            for (int64_t d = 0; d < x.rank(); ++d)
              indices.push_back(x.dim(d) == 1 ? at[static_cast<size_t>(d)] * 0 : at[static_cast<size_t>(d)]);
            if (indices.empty()) return broadcast_to(x, {size});
            return gather_selection(x, select_indices(x, indices, Checked::Already));
          },
          {.no_meta = true});

TPU_LOWER("nonzero_static", [](Value x, int64_t size, int64_t fill) {
  const Dims dims{size, x.rank()};
  if (x.rank() == 0 || x.numel() == 0 || size == 0) return full(x.graph(), {S64, dims}, fill);
  Value at = true_positions(flat_mask(x), size);
  Value there = broadcast_along(lt(at, x.numel()), dims, 0);
  return where(there, stack(coordinates(at, x.dims()), 1), fill);
});

// ---- unique --------------------------------------------------------------------------------------

namespace {

// A NaN is larger than all else, and equal to nothing.
Value less(Value a, Value b) {
  if (!is_floating(a.dtype())) return lt(a, b);
  return lt(a, b) | (is_nan(b) & !is_nan(a));
}

struct Sorted {
  Value rows;   // x in order, along dimension 0
  Value order;  // where each row comes from
};

Value order_of(Value key, Value order) {
  return sort({key, order}, 0, true, [](const Values& v) { return less(v[0], v[1]); })[1];
}

// Sorts by the last column first: each stable sort keeps what the columns after it settled.
Sorted sort_rows(Value x) {
  Value order = iota(x.graph(), {index_dtype(x.dim(0)), {x.dim(0)}}, 0);
  Value keys = x.dtype() == PRED ? convert(x, S8) : x;
  if (x.rank() == 1) {
    order = order_of(keys, order);
  } else if (x.numel() > 0) {
    const int64_t columns = x.numel() / x.dim(0);
    Value matrix = reshape(keys, {x.dim(0), columns});
    Value last = scalar(x.graph(), S32, columns - 1);
    order = while_(
        {last, order, matrix}, [](const Values& s) { return ge(s[0], 0); },
        [](const Values& s) -> Values {
          const int64_t n = s[2].dim(0);
          Value column = reshape(dynamic_slice(s[2], {s[0] * 0, s[0]}, {n, 1}), {n});
          return {s[0] - 1, order_of(take(column, s[1], 0), s[1]), s[2]};
        })[1];
  }
  return {take(x, order, 0), order};
}

}  // namespace

// Rows of x along dim (of the flattened x: none): in order, the number of each one's group, counted
// from 1, which group each row of x is in, and how many groups there are.
TPU_LOWER("tpu::unique_groups",
          [](Value x, std::optional<int64_t> dim, bool consecutive) -> Values {
            Value rows = dim ? move_dim(x, *dim, 0) : reshape(x, {x.numel()});
            const int64_t n = rows.dim(0);
            Value order;
            if (!consecutive) {
              Sorted sorted = sort_rows(rows);
              rows = sorted.rows;
              order = sorted.order;
            }
            Value before = slice_dim(rows, 0, 0, n - 1), after = slice_dim(rows, 0, 1, n);
            Value differs = reshape(ne(before, after), {n - 1, numel(rows.dims()) / n});
            Value starts = concat({full(x.graph(), {PRED, {1}}, true), any(differs, 1)}, 0);
            Value group = running_count(starts);
            Value inverse = group - 1;
            if (!consecutive) inverse = scatter_rows(inverse, order, inverse, 0, take_new);
            inverse = clip(inverse, 0, n - 1);  // it is so already; said, that an index by it needs no check
            return {rows, group, reshape(convert(inverse, S64), dim ? Dims{n} : x.dims()), convert(max(group, 0), S64)};
          },
          {.no_meta = true});

// The first row of each of `size` groups, along dim, and how many rows it has. Beyond the last group
// the rows repeat and the counts are 0.
TPU_LOWER("tpu::unique_values",
          [](Value rows, Value group, std::optional<int64_t> dim, int64_t size) -> Values {
            const int64_t n = rows.dim(0);
            Value start = count_below(group, size + 1);  // rows in the groups before
            Value first = minimum(slice_dim(start, 0, 0, size), n - 1);
            Value counts = slice_dim(start, 0, 1, size + 1) - slice_dim(start, 0, 0, size);
            Value values = take(rows, first, 0);
            return {dim ? move_dim(values, 0, *dim) : values, convert(counts, S64)};
          },
          {.no_meta = true});

// ---- Counting ------------------------------------------------------------------------------------

// Smallest and largest of a vector of integers, or zeros.
TPU_LOWER("tpu::bounds",
          [](Value x) {
            if (x.numel() == 0) return full(x.graph(), {S64, {2}}, 0);
            Value flat = convert(reshape(x, {x.numel()}), S64);
            return stack({min(flat, 0), max(flat, 0)}, 0);
          },
          {.no_meta = true});

// out[v] = number of times v is in x, or the sum of its weights
TPU_LOWER("tpu::bincount_sized",
          [](Value x, std::optional<Value> weights, int64_t size) {
            if (!weights) return count_indices(x, size, S64);
            const DType t = weights->dtype() == F32 ? F32 : F64;
            Value at = reshape(plain_index(x, size), {x.numel()});
            return scatter_rows(full(x.graph(), {t, {size}}, 0), at, cast(*weights, t), 0, add);
          },
          {.no_meta = true});

// i repeated repeats[i] times, one after the other
TPU_LOWER("tpu::repeat_interleave_sized",
          [](Value repeats, int64_t size) {
            const int64_t n = repeats.numel();
            if (n == 0 || size == 0) return full(repeats.graph(), {repeats.dtype(), {size}}, 0);
            Value ends = cumulative(repeats, 0, Scan::Sum);
            return clip(count_below(ends, size), 0, n - 1);  // both ends said: positions that need no check
          },
          {.no_meta = true});

TPU_LOWER("tpu::repeats_total",
          [](Value repeats) {
            Value wide = convert(repeats, S64);
            return stack({min(concat({wide, full(wide.graph(), {S64, {1}}, 0)}, 0), 0), sum(wide, 0)}, 0);
          },
          {.no_meta = true});

// `bins` equal parts of [low, high]; the last one holds `high` too. Equal bounds stand for those of x. Integers, which
// CUDA takes and the CPU does not, are counted exactly: libraries count the tokens of experts so.
TPU_LOWER("histc", [](Value x, int64_t bins, Value low, Value high) {
  TPU_CHECK(bins > 0, "torch.histc(): bins must be > 0");
  TPU_CHECK(is_floating(x.dtype()) || is_integer(x.dtype()), "\"histogram_cpu\" not implemented for '",
            torch_name(x.dtype()), "'");
  const bool whole = is_integer(x.dtype());
  const DType t = whole ? S64 : compute_dtype(x.dtype());
  if (x.numel() == 0) return full(x.graph(), {x.dtype(), {bins}}, 0);
  Value v = reshape(convert(x, t), {x.numel()});
  Value a = cast(low, t), b = cast(high, t);
  check_not(gt(a, b), ErrorKind::Runtime, "torch.histc: max must be larger than min");
  Value own = eq(a, b), from = where(own, min(v, 0), a), to = where(own, max(v, 0), b);
  if (!whole)
    check_not(!(is_finite(from) & is_finite(to)), ErrorKind::Runtime, "torch.histc: range of the data is not finite");
  Value flat = eq(from, to);
  from = where(flat, from - 1, from);
  to = where(flat, to + 1, to);
  Value inside = ge(v, from) & le(v, to);
  Value at = whole ? divide((v - from) * bins, broadcast_to(to - from, v.dims()))
                   : (v - from) / (to - from) * static_cast<double>(bins);
  return convert(count_indices(where(inside, minimum(convert(at, S32), bins - 1), bins), bins, whole ? S32 : t),
                 x.dtype());
});

}  // namespace tpu::lowering
