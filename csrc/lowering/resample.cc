// SPDX-License-Identifier: Apache-2.0
#include "lowering/resample.h"

#include <algorithm>

namespace tpu::lowering {
namespace {

// The t-th tap of each row, as vectors; rows that have fewer are masked out.
struct Column {
  std::vector<int64_t> index;
  std::vector<double> weight;
  std::vector<int64_t> present;
  bool all_present = true, all_one = true;
};

Column column(const Taps& taps, size_t t) {
  Column c;
  for (const auto& row : taps.rows) {
    const bool there = t < row.size();
    c.index.push_back(there ? row[t].first : 0);
    c.weight.push_back(there ? row[t].second : 0);
    c.present.push_back(there);
    c.all_present = c.all_present && there;
    c.all_one = c.all_one && (!there || row[t].second == 1);
  }
  return c;
}

Value integers(const std::vector<int64_t>& v) { return constant(graph(), {S64, {static_cast<int64_t>(v.size())}}, v); }
Value numbers(const std::vector<double>& v, DType t) {
  Value wide = constant(graph(), {t == F64 || t == C128 ? F64 : F32, {static_cast<int64_t>(v.size())}}, v);
  return is_complex(t) ? complex(wide, wide * 0) : convert(wide, t);
}

// A masked tap must not let an infinity through, hence select and not a zero weight.
Value tap(Value x, int64_t dim, const Column& c) {
  Value v = take(x, integers(c.index), dim);
  if (!c.all_one) v = v * broadcast_along(numbers(c.weight, x.dtype()), v.dims(), dim);
  if (!c.all_present) v = where(broadcast_along(convert(integers(c.present), PRED), v.dims(), dim), v, 0);
  return v;
}

}  // namespace

Taps transposed(const Taps& taps) {
  Taps out{static_cast<int64_t>(taps.rows.size()), {}};
  out.rows.resize(at(taps.in));
  for (size_t o = 0; o < taps.rows.size(); ++o) {
    for (const auto& [index, weight] : taps.rows[o]) out.rows[at(index)].emplace_back(static_cast<int64_t>(o), weight);
  }
  return out;
}

Value apply(const Taps& taps, Value x, int64_t dim) {
  constexpr size_t kUnrolled = 16;
  size_t most = 0;
  for (const auto& row : taps.rows) most = std::max(most, row.size());
  const auto out = static_cast<int64_t>(taps.rows.size());
  Dims dims = x.dims();
  dims[at(dim)] = out;
  if (most == 0 || numel(dims) == 0) return full(graph(), {x.dtype(), dims}, 0);
  if (most <= kUnrolled) {
    Value total;
    for (size_t t = 0; t < most; ++t) {
      Value v = tap(x, dim, column(taps, t));
      total = total ? total + v : v;
    }
    return total;
  }
  // All taps of a row side by side, then a sum.
  Taps flat{taps.in, {}};
  for (const auto& row : taps.rows) {
    for (size_t t = 0; t < most; ++t) {
      flat.rows.emplace_back();
      if (t < row.size()) flat.rows.back().push_back(row[t]);
    }
  }
  Value v = tap(x, dim, column(flat, 0));
  Dims split = dims;
  split.insert(split.begin() + dim + 1, static_cast<int64_t>(most));
  return sum(reshape(v, split), dim + 1);
}

}  // namespace tpu::lowering
