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

namespace {

// Rounds to the grid of an integer type and back; true where the grid holds the number.
std::tuple<Value, Value> fake_quantized(Value x, Value step, Value shift, int64_t low, int64_t high) {
  TPU_CHECK(low <= high, "`quant_min` should be less than or equal to `quant_max`.");
  const DType t = compute_dtype(x.dtype());
  Value wide = convert(x, t);
  Value q = round_nearest_even(wide * (1 / convert(step, t))) + convert(shift, t);
  const auto limit = [](int64_t v) { return static_cast<double>(v); };
  Value y = (clip(q, limit(low), limit(high)) - convert(shift, t)) * convert(step, t);
  return {convert(y, x.dtype()), ge(q, limit(low)) & le(q, limit(high))};
}

// [n] -> [1, ..., n, ..., 1]
Value along(Value v, int64_t axis, int64_t rank) {
  Dims dims(static_cast<size_t>(rank), 1);
  dims[static_cast<size_t>(axis)] = v.numel();
  return reshape(v, dims);
}

}  // namespace

TPU_LOWER("fake_quantize_per_tensor_affine_cachemask", fake_quantized);

TPU_LOWER("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
          [](Value x, Value scale, Value zero, Value enabled, int64_t low, int64_t high) {
            auto [y, kept] = fake_quantized(x, reshape(scale, {}), reshape(zero, {}), low, high);
            Value on = reshape(ne(enabled, 0), {});
            return std::tuple(where(on, y, x), where(on, kept, like(kept, true)));
          });

TPU_LOWER("fake_quantize_per_channel_affine_cachemask",
          [](Value x, Value scale, Value zero, int64_t axis, int64_t low, int64_t high) {
            return fake_quantized(x, along(scale, axis, x.rank()), along(zero, axis, x.rank()), low, high);
          });

// Weights of 4 bits, two in a byte, the first of them in the high half: [n, k / 2]. The result has the shape that
// PyTorch gives the tiles of a GPU, and holds the bytes in their order: it is only for _weight_int4pack_mm to read.
TPU_LOWER("_convert_weight_to_int4pack",
          [](Value w, int64_t tiles) {
            TPU_CHECK(w.rank() == 2 && w.dtype() == U8, "_convert_weight_to_int4pack: expected a matrix of uint8, got ",
                      to_string(w.type()));
            TPU_CHECK(tiles == 2 || tiles == 4 || tiles == 8,
                      "_convert_weight_to_int4pack: innerKTiles need to be 2, 4, or 8, got ", tiles);
            const int64_t n = w.dim(0), k = w.dim(1) * 2;
            TPU_CHECK(n % 8 == 0 && k % (tiles * 16) == 0,
                      "_convert_weight_to_int4pack: expected n divisible by 8 and k by ", tiles * 16, ", got n = ", n,
                      " and k = ", k);
            const Dims shape{n / 8, k / (tiles * 16), 32, tiles / 2};
            return bitcast_convert(reshape(w, {shape[0], shape[1], shape[2], shape[3], 4}), S32);
          },
          {.no_meta = true});

// y = x w^T where w = (q - 8) scale + zero, with a scale and a zero for each group of `group` along k and each row of
// w: scales_and_zeros is [k / group, n, 2].
TPU_LOWER("_weight_int4pack_mm",
          [](Value x, Value packed, int64_t group, Value scales_and_zeros) {
            TPU_CHECK(x.rank() == 2 && (x.dtype() == BF16 || x.dtype() == F16 || x.dtype() == F32),
                      "_weight_int4pack_mm: expected a matrix of float32, float16 or bfloat16, got ",
                      to_string(x.type()));
            TPU_CHECK(packed.rank() == 4 && packed.dtype() == S32,
                      "_weight_int4pack_mm: expected the int32 result of _convert_weight_to_int4pack, got ",
                      to_string(packed.type()));
            const int64_t n = packed.dim(0) * 8, k = x.dim(1);
            TPU_CHECK(packed.numel() * 8 == n * k, "_weight_int4pack_mm: expected weights of ", k, " columns, got ",
                      packed.numel() * 8 / n);
            TPU_CHECK(group == 32 || group == 64 || group == 128 || group == 256,
                      "_weight_int4pack_mm: expect qGroupSize to be 32, 64, 128 or 256, got ", group);
            const Dims per_group{k / group, n, 2};
            TPU_CHECK(
                k % group == 0 && scales_and_zeros.type().dims == per_group && scales_and_zeros.dtype() == x.dtype(),
                "_weight_int4pack_mm: expected qScaleAndZeros of the first operand's dtype, [", k / group, ", ", n,
                ", 2], got ", to_string(scales_and_zeros.type()));
            Value bytes = reshape(bitcast_convert(packed, U8), {n, k / 2, 1});
            Value four = like(bytes, 4);
            Value q = concatenate({shift_right_logical(bytes, four), bytes & like(bytes, 15)}, 2);
            q = reshape(convert(q, F32) - 8, {n, k / group, group});
            Value parts = transpose(convert(scales_and_zeros, F32), {2, 1, 0});  // [2, n, k / group]
            const auto part = [&](int64_t i) { return reshape(slice_dim(parts, 0, i, i + 1), {n, k / group, 1}); };
            Value w = reshape(q * part(0) + part(1), {n, k});
            return convert(matmul2(convert(x, F32), transpose(w, {1, 0}), F32, Precision::HIGHEST), x.dtype());
          },
          {.no_meta = true});

}  // namespace tpu::lowering
