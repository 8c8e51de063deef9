// SPDX-License-Identifier: Apache-2.0
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

// rows[i] added up into table row index[i]; rows whose index is out of range are left out.
Value add_rows(Value index, Value rows, int64_t count) {
  return scatter_rows(full(rows.graph(), {rows.dtype(), {count, rows.dim(1)}}, 0), index, rows, 0, add);
}

}  // namespace

TPU_LOWER("embedding", [](Value weight, Value indices, Unused, Unused, Unused) {
  TPU_CHECK(weight.rank() == 2, "'weight' must be 2-D");
  check_range(indices, 0, weight.dim(0), ErrorKind::Index, out_of_range);
  if (result_type().numel() == 0) return full(weight.graph(), result_type(), 0);
  if (weight.dim(0) == 0) fail(ErrorKind::Index, out_of_range(0));
  return take(weight, plain_index(indices, weight.dim(0)), 0);
}, {.host_tensors = true});

// dw[v] = sum over i with indices[i] = v of dy[i], divided by how often v occurs if asked for
TPU_LOWER("embedding_dense_backward", [](Value dy, Value indices, int64_t rows, int64_t padding_idx, bool by_frequency) {
  const int64_t n = indices.numel(), width = result_type().dims[1];
  Value g = reshape(accumulate(dy), {n, width});
  Value at = reshape(plain_index(indices, rows), {n});
  if (padding_idx >= 0) at = where(eq(at, padding_idx), rows, at);
  if (by_frequency) g = g / expand_dims(take(count_indices(at, rows, g.dtype()), at, 0), 1);
  return convert(add_rows(at, g, rows), dy.dtype());
}, {.host_tensors = true});

}  // namespace tpu::lowering
