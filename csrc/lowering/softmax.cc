// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// y_i = e^(x_i - max x) / sum_j e^(x_j - max x)
Value softmax(Value x, const hlo::Axes& dims) {
  Value e = exp(x - max(x, dims, keep));
  return e / sum(e, dims, keep);
}

// y_i = x_i - max x - log sum_j e^(x_j - max x)
Value log_softmax(Value x, const hlo::Axes& dims) {
  Value a = x - max(x, dims, keep);
  return a - log(sum(exp(a), dims, keep));
}

Value finish(Value x) { return convert(x, result_type().dtype); }

}  // namespace

TPU_LOWER("_softmax", [](Value x, Dim dim, bool /*half_to_float: the result's dtype*/) {
  return finish(softmax(accumulate(x), along(x, dim)));
});
TPU_LOWER("_log_softmax", [](Value x, Dim dim, bool /*half_to_float*/) {
  return finish(log_softmax(accumulate(x), along(x, dim)));
});

// dx = y (dy - sum_j y_j dy_j)
TPU_LOWER("_softmax_backward_data", [](Value dy, Value y, Dim dim, DType) {
  Value p = accumulate(y), g = accumulate(dy);
  return finish(p * (g - sum(p * g, along(y, dim), keep)));
});

// dx = dy - e^y sum_j dy_j
TPU_LOWER("_log_softmax_backward_data", [](Value dy, Value y, Dim dim, DType) {
  Value g = accumulate(dy);
  return finish(g - exp(accumulate(y)) * sum(g, along(y, dim), keep));
});

}  // namespace tpu::lowering
