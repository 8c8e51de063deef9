// SPDX-License-Identifier: Apache-2.0
#include <limits>

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

Value operand(Value x, const char* kernel) {
  if (is_integer(x.dtype()) || x.dtype() == PRED) {
    fail(ErrorKind::NotImplemented, '"', kernel, "\" not implemented for '", torch_name(x.dtype()), "'");
  }
  return accumulate(x);
}
Value finish(Value x) { return convert(x, result_type().dtype); }

}  // namespace

TPU_LOWER("_softmax", [](Value x, Dim dim, bool /*half_to_float: the result's dtype*/) {
  return finish(softmax(operand(x, "softmax"), along(x, dim)));
});
TPU_LOWER("_log_softmax", [](Value x, Dim dim, bool /*half_to_float*/) {
  return finish(log_softmax(operand(x, "log_softmax"), along(x, dim)));
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

// A row that is all -inf gives zeros: attention to nothing.
TPU_LOWER("_safe_softmax", [](Value x, Dim dim, std::optional<DType>) {
  Value a = accumulate(cast(x, result_type().dtype));
  Value blocked = all(eq(a, -std::numeric_limits<double>::infinity()), along(x, dim), keep);
  return finish(where(blocked, 0, softmax(a, along(x, dim))));
});

// ---- With a mask: true is left out -------------------------------------------------------------

// mask_type 0: [L, L] for all; 1: [B, L] for x [B, heads, L, L]; 2: as x.
static Value laid_out(Value mask, Value x, std::optional<int64_t> mask_type) {
  if (mask_type == 1) mask = reshape(mask, {x.dim(0), 1, 1, mask.dim(mask.rank() - 1)});
  return broadcast_to(mask, x.dims());
}
TPU_LOWER("_masked_softmax",
          [](Value x, Value mask, std::optional<int64_t> dim, std::optional<int64_t> mask_type) {
            TPU_CHECK(mask.dtype() == PRED, "Mask should be a boolean tensor");
            const hlo::Axes along_dim = x.rank() == 0 ? hlo::Axes(Dims{}) : hlo::Axes(dim.value_or(-1));
            const double out = -std::numeric_limits<double>::infinity();
            return convert(softmax(where(laid_out(mask, x, mask_type), out, accumulate(x)), along_dim), x.dtype());
          },
          {.no_meta = true});
TPU_LOWER("_masked_softmax_backward",
          [](Value dy, Value y, Value mask, std::optional<int64_t> dim) {
            const hlo::Axes along_dim = y.rank() == 0 ? hlo::Axes(Dims{}) : hlo::Axes(dim.value_or(-1));
            Value p = accumulate(y), g = accumulate(dy), left_out = broadcast_to(mask, y.dims());
            Value dot = sum(where(left_out, 0, p * g), along_dim, keep);
            return convert(where(left_out, 0, p * (g - dot)), y.dtype());
          },
          {.no_meta = true});

}  // namespace tpu::lowering
