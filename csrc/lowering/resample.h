// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "lowering/spatial.h"

namespace tpu::lowering {

// A sparse matrix along one dimension: out[o] = sum_t weight[o][t] x[index[o][t]]. Interpolation,
// adaptive averages and border padding are such matrices, one a dimension; their gradients are the
// transposed ones.
struct Taps {
  int64_t in = 0;
  std::vector<std::vector<std::pair<int64_t, double>>> rows;  // (index, weight) of an output place each
};

Taps transposed(const Taps& taps);

// Applies `taps` along dim, in x's dtype.
Value apply(const Taps& taps, Value x, int64_t dim);

}  // namespace tpu::lowering
