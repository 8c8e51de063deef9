// SPDX-License-Identifier: Apache-2.0
// Sequences and patterns made of nothing but numbers.
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

// 0, 1, 2, ... in the dtype that CPU PyTorch computes the sequence in.
Value counting(const Type& out) { return iota(graph(), {compute_dtype(out.dtype), out.dims}, 0); }

}  // namespace

// start + i * step: arange and range, whose sizes aten/sized.cc works out.
TPU_LOWER("tpu::sequence_", [](Value out, Value start, Value step) {
  Value i = counting(out.type());
  return convert(cast(start, i.dtype()) + i * cast(step, i.dtype()), out.dtype());
}, {.no_meta = true});

namespace {

Value eye() {
  Value zeros = full(graph(), {S32, result_type().dims}, 0);
  return convert(eq(iota_like(zeros, 0, S32), iota_like(zeros, 1, S32)), result_type().dtype);
}

}  // namespace

TPU_LOWER("eye.out", [](int64_t) { return eye(); });
TPU_LOWER("eye.m_out", [](int64_t, int64_t) { return eye(); });

}  // namespace tpu::lowering
