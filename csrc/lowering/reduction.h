// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/op.h"
#include "lowering/promote.h"

// What the reductions, scans, softmaxes and sorts share.
namespace tpu::lowering {

// The dimension a call names: none of a 0-d tensor, which accepts dim 0 and -1.
inline hlo::Axes along(Value x, Dim dim) { return x.rank() == 0 ? hlo::Axes(Dims{}) : hlo::Axes(dim.value); }

// Throws as PyTorch does when there is nothing along dim to choose from.
void need_elements(Value x, int64_t dim, const char* op);

// Number of elements that are reduced into one.
int64_t count(Value x, const hlo::Axes& dims);

// Extremum and its first position along dim; NaN wins. 0-d tensors too. Index: S64.
Extreme first_extreme(Value x, int64_t dim, bool keep_dims, bool largest);

// Stable order along dim: NaN after all numbers (descending: before). 0-d tensors too.
struct Sorted {
  Value values, indices;
};
Sorted sorted(Value x, int64_t dim, bool descending);

// S32 places of v in the ascending sequence: before its equals, or with `right` after them. The sequence
// is a vector, or has v's leading dimensions. Equal dtypes.
Value search_sorted(Value sequence, Value v, bool right);

// (sum_i |x_i|^p)^(1/p), with the limits for p = 0, inf and -inf. Result: real.
Value vector_norm(Value x, double p, const hlo::Axes& dims, bool keep_dims);

}  // namespace tpu::lowering
