// SPDX-License-Identifier: Apache-2.0
// Sequences and patterns made of nothing but numbers.
#include "lowering/indexing.h"
#include "lowering/series.h"

namespace tpu::lowering {
namespace {

// 0, 1, 2, ... in the dtype that CPU PyTorch computes the sequence in.
Value counting(const Type& out) { return iota(graph(), {compute_dtype(out.dtype), out.dims}, 0); }

}  // namespace

// start + i * step: arange and range, whose sizes aten/sized.cc works out. `last`, given for integers, changes nothing,
// but tells what range the numbers lie in: as indices they need no check then.
TPU_LOWER("tpu::sequence_",
          [](Value out, Value start, Value step, std::optional<Value> last) {
            Value i = counting(out.type());
            Value first = cast(start, i.dtype()), v = first + i * cast(step, i.dtype());
            if (!last) return convert(v, out.dtype());
            Value end = cast(*last, i.dtype());
            return convert(clamp(minimum(first, end), v, maximum(first, end)), out.dtype());
          },
          {.no_meta = true});

namespace {

// The dtype that linspace and logspace step in: integers may differ by more than their own type holds.
DType step_dtype(DType t) { return is_integer(t) ? F64 : compute_dtype(t); }

Value spaced(Value start, Value end, DType t) {
  const Type& out = result_type();
  return evenly_spaced(convert(cast(start, out.dtype), t), convert(cast(end, out.dtype), t), out.dims[0]);
}

}  // namespace

Value evenly_spaced(Value first, Value last, int64_t n) {
  const DType t = first.dtype();
  if (n <= 1) return broadcast_to(first, {n});
  // XLA multiplies by the reciprocal of a constant, which is not exact.
  Value step = (last - first) / optimization_barrier({scalar(graph(), t, n - 1)})[0];
  Value i = iota(graph(), {real_of(t), {n}}, 0);
  Value up = convert(i, t), down = convert((n - 1) - i, t);
  return where(lt(i, n / 2), first + step * up, last - step * down);
}

TPU_LOWER("linspace.out", [](Value start, Value end, int64_t) {
  return cast(spaced(start, end, step_dtype(result_type().dtype)), result_type().dtype);
});

// base ^ linspace(start, end)
TPU_LOWER("logspace.out", [](Value start, Value end, int64_t, Value base) {
  const DType t = step_dtype(result_type().dtype);
  Value power = pow(cast(base, t), spaced(start, end, t));
  // An integer power must not fall short by rounding.
  if (is_integer(result_type().dtype))
    power = where(lt(abs(power - round_even(power)), 1e-9 * abs(power)), round_even(power), power);
  return cast(power, result_type().dtype);
});

namespace {

// Rows and columns of the true places of a [rows, cols] pattern, as PyTorch orders them.
Value places(int64_t rows, int64_t cols, const std::function<Value(Value)>& chosen) {
  const Type& out = result_type();
  if (out.dims[1] == 0) return full(graph(), out, 0);
  Value zeros = full(graph(), {S32, {rows, cols}}, 0);
  Value mask = chosen(iota_like(zeros, 1, S32) - iota_like(zeros, 0, S32));
  Value at = true_positions(reshape(mask, {rows * cols}), out.dims[1]);
  return convert(stack({at / cols, at % cols}, 0), out.dtype);
}

}  // namespace

TPU_LOWER("tril_indices", [](int64_t rows, int64_t cols, int64_t offset, std::optional<DType>, Unused, Unused, Unused) {
  return places(rows, cols, [&](Value diagonal) { return le(diagonal, offset); });
});
TPU_LOWER("triu_indices", [](int64_t rows, int64_t cols, int64_t offset, std::optional<DType>, Unused, Unused, Unused) {
  return places(rows, cols, [&](Value diagonal) { return ge(diagonal, offset); });
});

namespace {

Value eye() {
  Value zeros = full(graph(), {S32, result_type().dims}, 0);
  return convert(eq(iota_like(zeros, 0, S32), iota_like(zeros, 1, S32)), result_type().dtype);
}

}  // namespace

TPU_LOWER("eye.out", [](int64_t) { return eye(); });
TPU_LOWER("eye.m_out", [](int64_t, int64_t) { return eye(); });

}  // namespace tpu::lowering
