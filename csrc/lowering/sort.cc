// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// Whether a comes before b: NaN is larger than all numbers.
Value before(Value a, Value b, bool descending) {
  if (descending) std::swap(a, b);
  Value less = lt(a, b);
  return is_floating(a.dtype()) ? less | (is_nan(b) & !is_nan(a)) : less;
}

// A signed integer in the order of x: NaN is the largest, -0 equals 0. S64 for 64-bit types, else of 32 bits.
Value order_key(Value x) {
  if (x.dtype() == U64) return bitcast_convert(x, S64) ^ INT64_MIN;
  if (!is_floating(x.dtype())) return convert(x, S64);
  const bool wide = x.dtype() == F64;
  Value a = wide ? x : convert(x, F32);
  a = where(eq(a, 0), 0, where(is_nan(a), std::numeric_limits<double>::quiet_NaN(), a));
  Value bits = bitcast_convert(a, wide ? S64 : S32);
  return convert(where(lt(bits, 0), bits ^ (wide ? INT64_MAX : INT32_MAX), bits), S64);
}

// Positions along the last dimension in the order of 32-bit keys held in S64; ties by position.
Value order_of_narrow(Value key) {
  Value packed = (key << 32) | iota_like(key, -1, S64);
  const int64_t last = key.rank() - 1;
  packed = sort({packed}, last, /*stable=*/true, [](const Values& v) { return lt(v[0], v[1]); })[0];
  return clip(packed & 0xffffffff, 0, std::max<int64_t>(key.dim(last) - 1, 0));  // tells hlo/bounds.h what it is
}

// As sort(x, iota). One operand and a plain < sort about ten times faster on the CPU plugin than two with a
// comparison of their own, so a key of 32 bits carries its position; one of 64 is sorted by its low, then
// by its high half.
Value order_by_packing(Value x, bool descending) {
  Value key = order_key(x);
  if (descending) key = ~key;
  if (byte_size(x.dtype()) <= 4) return order_of_narrow(key);
  const int64_t last = x.rank() - 1;
  Value low = order_of_narrow((key & 0xffffffff) - (int64_t{1} << 31));
  Value high = order_of_narrow(take_along(key >> 32, convert(low, S32), last));
  return take_along(low, convert(high, S32), last);
}

// Types of which float32 holds every value.
bool fits_f32(DType t) { return byte_size(t) <= 2 || t == F32; }

// The k largest (or smallest) of float32 along the last dimension. XLA's top_k keeps the total order, in
// which a positive NaN is above inf and a negative one below -inf.
Value top_indices(Value x, int64_t k, bool largest) {
  Value key = convert(x, F32);
  key = where(is_nan(key), std::numeric_limits<float>::quiet_NaN(), key);
  if (!largest) key = bitcast_convert(bitcast_convert(key, S32) ^ INT32_MIN, F32);
  return top_k(key, k).indices;
}

Sorted sorted_last(Value x, bool descending) {
  const int64_t last = x.rank() - 1;
  if (call().target->packed_sorts && x.dim(last) <= INT32_MAX) {
    Value order = order_by_packing(x, descending);
    return {take_along(x, convert(order, S32), last), order};
  }
  const DType index = x.dim(last) <= INT32_MAX ? S32 : S64;
  const Values out = sort({x, iota_like(x, last, index)}, last, /*stable=*/true,
                          [&](const Values& v) { return before(v[0], v[1], descending); });
  return {out[0], convert(out[1], S64)};
}

// The element of `s` at `position` (size 1 along dim), and its place in the operand.
std::tuple<Value, Value> pick(const Sorted& s, Value position, int64_t dim, bool keep_dims) {
  if (position.numel() == 0) return {full(graph(), result_type(0), 0), full(graph(), result_type(1), 0)};
  Value value = take_along(s.values, position, dim), index = take_along(s.indices, position, dim);
  return keep_dims ? std::tuple(value, index) : std::tuple(squeeze(value, dim), squeeze(index, dim));
}

}  // namespace

Sorted sorted(Value x, int64_t dim, bool descending) {
  TPU_CHECK(!is_complex(x.dtype()), "Sort does not support complex dtypes on CPU");
  if (x.numel() == 0 || x.rank() == 0) return {x, full(graph(), {S64, x.dims()}, 0)};
  const Sorted s = sorted_last(move_dim(x, dim, -1), descending);
  return {move_dim(s.values, -1, dim), move_dim(s.indices, -1, dim)};
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
  if (x.rank() == 0 || k == 0 || !fits_f32(x.dtype())) {
    const Sorted s = sorted(x, dim, largest);
    if (x.rank() == 0) return std::tuple(reshape(s.values, result_type().dims), reshape(s.indices, result_type().dims));
    return std::tuple(slice_dim(s.values, dim, 0, k), slice_dim(s.indices, dim, 0, k));
  }
  Value a = move_dim(x, dim, -1);
  Value at = top_indices(a, k, largest);
  return std::tuple(move_dim(take_along(a, at, a.rank() - 1), -1, dim), move_dim(convert(at, S64), -1, dim));
});

TPU_LOWER("kthvalue", [](Value x, int64_t k, Dim dim, bool keep_dims) {
  const Sorted s = sorted(x, dim, false);
  if (x.rank() == 0) return std::tuple(s.values, s.indices);
  Value value = slice_dim(s.values, dim, k - 1, k), index = slice_dim(s.indices, dim, k - 1, k);
  return keep_dims ? std::tuple(value, index) : std::tuple(squeeze(value, dim), squeeze(index, dim));
});

// The lower of two middle ones. median: the first NaN if there is one. nanmedian: among the numbers.
static std::tuple<Value, Value> median(Value x, int64_t dim, bool keep_dims, bool skip_nan) {
  need_elements(x, dim, "median");
  const Sorted s = sorted(x, dim, false);
  if (x.rank() == 0) return {s.values, s.indices};
  const int64_t n = x.dim(dim);
  Value nan = is_floating(x.dtype()) ? is_nan(x) : like(convert(x, PRED), false);
  Value numbers = sum(convert(!nan, S32), dim, keep);
  Value position = skip_nan ? maximum((numbers - 1) / 2, 0) : where(eq(numbers, n), (n - 1) / 2, numbers);
  return pick(s, position, dim, keep_dims);
}
static Value median_of_all(Value x, bool skip_nan) {
  if (x.numel() == 0) return cast(scalar(graph(), F32, std::numeric_limits<float>::quiet_NaN()), x.dtype());
  return std::get<0>(median(reshape(x, {x.numel()}), 0, false, skip_nan));
}
TPU_LOWER("median", [](Value x) { return median_of_all(x, false); });
TPU_LOWER("nanmedian", [](Value x) { return median_of_all(x, true); });
TPU_LOWER("median.dim", [](Value x, Dim dim, bool keep_dims) { return median(x, dim, keep_dims, false); });
TPU_LOWER("nanmedian.dim", [](Value x, Dim dim, bool keep_dims) { return median(x, dim, keep_dims, true); });

// The smallest of the most frequent values, at its last place: the first longest run of equals in order.
TPU_LOWER("mode", [](Value x, Dim dim, bool keep_dims) {
  need_elements(x, dim, "mode");
  const Sorted s = sorted(x, dim, false);
  if (x.rank() == 0) return std::tuple(s.values, s.indices);
  const int64_t n = x.dim(dim);
  Value place = iota_like(x, dim, S32);
  Value changes = ne(slice_dim(s.values, dim, 1, n), slice_dim(s.values, dim, 0, n - 1));
  Value begins = pad_dim(changes, dim, 1, 0, true), ends = pad_dim(changes, dim, 0, 1, true);
  Value start = cumulative(where(begins, place, 0), dim, Scan::Max);
  Value length = where(ends, place - start + 1, 0);
  return pick(s, first_extreme(length, dim, keep, true).index, dim, keep_dims);
});

}  // namespace tpu::lowering
