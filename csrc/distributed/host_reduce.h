// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace tpu::distributed {

// Reductions on host memory, for every dtype the device has.

// Whether Gloo reduces this dtype by itself.
bool gloo_reduces(const c10d::ReduceOp& op, at::ScalarType dtype);

// `parts` [n, k]: a row of each rank; `out` [k] gets their reduction. Sums of bfloat16 and float16 are rounded once.
void reduce_rows(const c10d::ReduceOp& op, const at::Tensor& parts, at::Tensor& out);

// What Gloo is asked for instead of AVG and PREMUL_SUM: `data` is changed before, or after, the sum over n ranks.
c10d::ReduceOp plain(const c10d::ReduceOp& op);
void before_sum(const c10d::ReduceOp& op, at::Tensor& data);
void after_sum(const c10d::ReduceOp& op, at::Tensor& data, int64_t n);

}  // namespace tpu::distributed
