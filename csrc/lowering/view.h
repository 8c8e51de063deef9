// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hlo/graph.h"

namespace tpu::lowering {

// A strided view over a dense row-major base, as PyTorch describes it: element (i, j, ...) of the
// view is element offset + i*strides[0] + j*strides[1] + ... of the base read as `dtype`.
//
// Two ways to reach it. Sliced: the strides nest, so the view is a box of the base reshaped to
// [N/s0, s0/s1, ..., s_last]; the corner of the box is a few run-time numbers ("digits" of the
// offset), so views that differ in the offset alone share a program. Gathered: anything else
// (overlapping windows, strides that don't nest); the offset is one run-time number.
enum class Access : uint8_t { Whole, SlicedAtZero, Sliced, Gathered };

inline constexpr int kMaxRank = 64;

struct Digits {
  int count = 0;
  int64_t values[kMaxRank + 1];
};

// Finds how to reach the view and the run-time numbers of its offset: none for Whole and
// SlicedAtZero. Depends on nothing but its arguments; called on every access, so it allocates
// nothing. `numel`: elements of the base in the view's dtype. Strides may not be negative.
Access classify(int64_t numel, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset,
                Digits& digits);

struct View {
  hlo::Dims sizes;
  hlo::Dims strides;
  hlo::DType dtype;
  Access access = Access::Whole;
  bool conj = false;
  bool neg = false;
};

// The view's value. `digits`: rank-0 S64 values, as many as classify() counted.
hlo::Value read(hlo::Value base, const View& view, const hlo::Values& digits);

// The base with the view's elements replaced by `update` (the view's sizes and dtype). The result
// has the base's type.
hlo::Value write(hlo::Value base, const View& view, const hlo::Values& digits, hlo::Value update);

// Whether a write replaces every element of the base, so that the old value isn't needed.
bool covers(const hlo::Type& base, const View& view);

// The base's elements as a flat value of another dtype: the same bytes read anew. The byte size
// must divide evenly.
hlo::Value reinterpret_flat(hlo::Value base, hlo::DType dtype);

}  // namespace tpu::lowering
