// SPDX-License-Identifier: Apache-2.0
// Products of matrices in 8 bits. The factors are exact in bfloat16, so that a TPU multiplies them in one pass, and
// are accumulated in float32; scales are applied to the product.
#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

Value product(Value a, Value b) { return matmul2(convert(a, BF16), convert(b, BF16), F32); }

// One scale, or one for each row of the left (column of the right) factor.
Value scale_of(Value scale, int64_t n, bool rows) {
  TPU_CHECK(scale.numel() == 1 || scale.numel() == n, "_scaled_mm: expected one scale or ", n, ", got ", scale.numel());
  if (scale.numel() == 1) return reshape(scale, {});
  return reshape(scale, rows ? Dims{n, 1} : Dims{1, n});
}

Value scaled(Value a, Value b, Value scale_a, Value scale_b, const std::optional<Value>& bias,
             std::optional<DType> out) {
  Value y = product(a, b) * convert(scale_of(scale_a, a.dim(0), true), F32) *
            convert(scale_of(scale_b, b.dim(1), false), F32);
  if (bias) y = y + convert(*bias, F32);
  const DType t = out.value_or(a.dtype());
  if (t == F8E4M3FN) y = clip(y, -448, 448);  // the type has no infinity: as the CPU, the largest number stands
  return convert(y, t);
}

}  // namespace

// (scale_a a) (scale_b b) + bias; the CPU ignores scale_result as well.
TPU_LOWER("_scaled_mm", [](Value a, Value b, Value scale_a, Value scale_b, std::optional<Value> bias, Unused,
                           std::optional<DType> out,
                           bool /*fast accumulation*/) { return scaled(a, b, scale_a, scale_b, bias, out); });

TPU_LOWER("_scaled_mm_v2", [](Value a, Value b, Values scale_a, Dims recipe_a, Unused, Values scale_b, Dims recipe_b,
                              Unused, std::optional<Value> bias, std::optional<DType> out, Unused, bool) {
  constexpr int64_t kRowWise = 1;  // at::blas::ScalingType; what is above it scales blocks
  for (const Dims& recipe : {recipe_a, recipe_b}) {
    TPU_CHECK(recipe.size() == 1 && recipe[0] <= kRowWise && scale_a.size() == 1 && scale_b.size() == 1,
              "_scaled_mm_v2: only scales for a tensor or for rows are supported");
  }
  return scaled(a, b, scale_a[0], scale_b[0], bias, out);
});

// x (scale w)^T with a scale for each row of w
TPU_LOWER("_weight_int8pack_mm", [](Value x, Value w, Value scales) {
  TPU_CHECK(w.dtype() == S8, "_weight_int8pack_mm: expect B to be int8 tensor.");
  // A float32 x is no bfloat16.
  Value turned = transpose(w, {1, 0});
  Value y =
      x.dtype() == BF16 ? product(x, turned) : matmul2(accumulate(x), convert(turned, F32), F32, Precision::HIGHEST);
  return convert(y * convert(reshape(scales, {1, w.dim(0)}), F32), x.dtype());
});

}  // namespace tpu::lowering
