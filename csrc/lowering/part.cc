// SPDX-License-Identifier: Apache-2.0
// Writing a part of a tensor: the backward of select, slice, diagonal and unfold, and their _scatter
// forms. Where the part stands is a run-time number, so that a loop over it doesn't recompile.
#include <algorithm>

#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

// x with `part` at `start` of dim; start is a rank-0 S64 in range.
Value set_part(Value x, Value part, int64_t dim, Value start) {
  Values starts(static_cast<size_t>(x.rank()), scalar(x.graph(), S64, 0));
  starts[static_cast<size_t>(dim)] = start;
  return dynamic_update_slice(x, part, starts);
}

Value zeros(Value like, const Dims& dims) { return full(like.graph(), {like.dtype(), dims}, 0); }

Value set_select(Value x, Value part, int64_t dim, Value index) {
  const int64_t d = wrap_dim(dim, x.rank(), "select");
  Value i = convert(index, S64);
  return set_part(x, expand_dims(part, d), d, where(lt(i, 0), i + x.dim(d), i));
}

// x[start::step] = part along dim. The part is spread out to its steps; what stands between stays.
Value set_slice(Value x, Value part, int64_t dim, std::optional<Value> start, int64_t step) {
  const int64_t d = wrap_dim(dim, x.rank(), "slice"), size = x.dim(d);
  if (part.numel() == 0) return x;
  Value at = start ? convert(*start, S64) : scalar(x.graph(), S64, 0);
  at = clip(where(lt(at, 0), at + size, at), 0, size);
  if (step == 1 || part.dim(d) == 1) return set_part(x, part, d, at);
  Value here = full(x.graph(), {PRED, part.dims()}, true);
  here = pad_dim(here, d, 0, 0, false, step - 1);
  Value spread = pad_dim(part, d, 0, 0, 0, step - 1);
  return where(set_part(full(x.graph(), {PRED, x.dims()}, false), here, d, at),
               set_part(zeros(x, x.dims()), spread, d, at), x);
}

// The diagonal's elements, last in `part`, laid into the last two dimensions of x.
Value set_last_diagonal(Value x, Value part, int64_t offset) {
  const int64_t rows = x.dim(x.rank() - 2), cols = x.dim(x.rank() - 1), n = part.dim(part.rank() - 1);
  if (part.numel() == 0) return x;
  Value plane = full(x.graph(), {S32, {rows, cols}}, 0);
  Value here = eq(iota_like(plane, 1, S32) - iota_like(plane, 0, S32), offset);
  const int64_t above = std::max<int64_t>(-offset, 0);
  Value by_row = pad_dim(part, -1, above, rows - above - n);
  return where(broadcast_to(here, x.dims()), broadcast_to(expand_dims(by_row, by_row.rank()), x.dims()), x);
}

Value set_diagonal(Value x, Value part, int64_t offset, int64_t dim1, int64_t dim2) {
  const int64_t a = wrap_dim(dim1, x.rank(), "diagonal"), b = wrap_dim(dim2, x.rank(), "diagonal");
  Dims order;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != a && d != b) order.push_back(d);
  }
  order.push_back(a);
  order.push_back(b);
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return transpose(set_last_diagonal(transpose(x, order), part, offset), back);
}

}  // namespace

TPU_LOWER("select_backward",
          [](Value dy, Dims sizes, int64_t dim, Value index) { return set_select(zeros(dy, sizes), dy, dim, index); });
TPU_LOWER("select_scatter", [](Value x, Value part, int64_t dim, Value index) {
  return set_select(x, convert(part, x.dtype()), dim, index);
});

TPU_LOWER("slice_backward", [](Value dy, Dims sizes, int64_t dim, Value start, Unused, int64_t step) {
  return set_slice(zeros(dy, sizes), dy, dim, start, step);
});
TPU_LOWER("slice_scatter", [](Value x, Value part, int64_t dim, std::optional<Value> start, Unused, int64_t step) {
  return set_slice(x, convert(part, x.dtype()), dim, start, step);
});

TPU_LOWER("diagonal_backward", [](Value dy, Dims sizes, int64_t offset, int64_t dim1, int64_t dim2) {
  return set_diagonal(zeros(dy, sizes), dy, offset, dim1, dim2);
});
TPU_LOWER("diagonal_scatter", [](Value x, Value part, int64_t offset, int64_t dim1, int64_t dim2) {
  return set_diagonal(x, convert(part, x.dtype()), offset, dim1, dim2);
});
TPU_LOWER("diag_embed", [](Value x, int64_t offset, int64_t dim1, int64_t dim2) {
  return set_diagonal(full(x.graph(), result_type(), 0), x, offset, dim1, dim2);
});

// dx[i] = sum of dy[window l, place k] over i = l*step + k
TPU_LOWER("unfold_backward", [](Value dy, Dims sizes, int64_t dim, int64_t size, int64_t step) {
  Value dx = zeros(dy, sizes);
  if (sizes.empty()) return reshape(dy, sizes);
  const int64_t d = wrap_dim(dim, dx.rank(), "unfold"), windows = dy.dim(d), n = sizes[static_cast<size_t>(d)];
  if (dy.numel() == 0) return dx;
  if (size > 32) {  // a pad for each place would be a long program
    Value places = full(dy.graph(), {S32, {windows, size}}, 0);
    Value at = reshape(iota_like(places, 0, S32) * step + iota_like(places, 1, S32), {windows * size});
    Dims flat = sizes;
    flat[static_cast<size_t>(d)] = windows * size;
    return scatter_rows(dx, at, reshape(move_dim(dy, -1, d + 1), flat), d, add);
  }
  for (int64_t k = 0; k < size; ++k) {
    Value place = select_dim(dy, -1, k);
    const int64_t length = (windows - 1) * step + 1;
    dx = dx + pad_dim(place, d, k, n - k - length, 0, step - 1);
  }
  return dx;
});

// ---- By mask -------------------------------------------------------------------------------------

namespace {

// At each true place of a flattened mask, how many true places stand before it.
Value rank_among_true(Value mask) { return running_count(mask) - 1; }

}  // namespace

// The places of the mask take the source's elements in order.
TPU_LOWER("masked_scatter", [](Value x, Value mask, Value source) {
  TPU_CHECK(mask.dtype() == PRED, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
            torch_name(mask.dtype()));
  TPU_CHECK(x.dtype() == source.dtype(), "masked_scatter_: expected self and source to have same dtypes but got ",
            torch_name(x.dtype()), " and ", torch_name(source.dtype()));
  const Dims dims = broadcast_dims(x.dims(), mask.dims(), "masked_scatter");
  if (numel(dims) == 0) return broadcast_to(x, dims);
  Value here = reshape(broadcast_to(convert(mask, PRED), dims), {numel(dims)});
  Value rank = rank_among_true(here);
  check_not(ge(max(rank, 0), source.numel()), ErrorKind::Runtime,
            "Number of elements of source < number of ones in mask");
  if (source.numel() == 0) return broadcast_to(x, dims);
  Value taken = take(reshape(source, {source.numel()}), maximum(rank, 0), 0);
  return where(reshape(here, dims), reshape(taken, dims), broadcast_to(x, dims));
});

// The gradients of the mask's places in order, then zeros.
TPU_LOWER("masked_scatter_backward", [](Value dy, Value mask, Dims sizes) {
  const int64_t n = numel(sizes);
  const Dims dims = broadcast_dims(dy.dims(), mask.dims(), "masked_scatter");
  if (numel(dims) == 0 || n == 0) return full(dy.graph(), {dy.dtype(), sizes}, 0);
  Value at = true_positions(reshape(broadcast_to(convert(mask, PRED), dims), {numel(dims)}), n);
  Value taken = take(reshape(broadcast_to(dy, dims), {numel(dims)}), minimum(at, numel(dims) - 1), 0);
  return reshape(where(lt(at, numel(dims)), taken, 0), sizes);
});

}  // namespace tpu::lowering
