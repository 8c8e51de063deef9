// SPDX-License-Identifier: Apache-2.0
// The device's part of operators whose output size depends on data: counts, and results padded to a
// given size. aten/sized.cc reads the count and cuts the padding off.
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

Value flat_mask(Value x) { return reshape(ne(x, 0), {x.numel()}); }

// Row-major coordinates of flat positions, a column for each dimension.
Values coordinates(Value position, const Dims& dims) {
  Values columns(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    columns[d] = convert(d == 0 ? position : position % dims[d], S64);
    position = position / std::max<int64_t>(dims[d], 1);
  }
  return columns;
}

// Padding repeats a position that is in range.
Value padded_positions(Value x, int64_t size) {
  return minimum(true_positions(flat_mask(x), size), std::max<int64_t>(x.numel() - 1, 0));
}

}  // namespace

TPU_LOWER("tpu::count_true", [](Value x) { return sum(convert(flat_mask(x), S64), 0); }, {.no_meta = true});

TPU_LOWER("tpu::nonzero_padded", [](Value x, int64_t size) {
  if (x.rank() == 0) return full(x.graph(), {S64, {size, 0}}, 0);
  return stack(coordinates(padded_positions(x, size), x.dims()), 1);
}, {.no_meta = true});

TPU_LOWER("tpu::mask_positions", [](Value mask, int64_t size) {
  return coordinates(padded_positions(mask, size), mask.dims());
}, {.no_meta = true});

TPU_LOWER("tpu::masked_select_padded", [](Value x, Value mask, int64_t size) {
  const Dims dims = broadcast_dims(x.dims(), mask.dims(), "masked_select");
  Value flat = reshape(broadcast_to(x, dims), {numel(dims)});
  return take(flat, padded_positions(broadcast_to(mask, dims), size), 0);
}, {.no_meta = true});

}  // namespace tpu::lowering
