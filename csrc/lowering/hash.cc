// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

// The bits of a float in double precision. A TPU can't look at those of a float64 of its own, so what is narrower is
// widened bit by bit; a subnormal counts as 0, as in arithmetic.
Value double_bits(Value x) {
  if (x.dtype() == F64) return bitcast_convert(x, U64);
  Value bits = convert(bitcast_convert(convert(x, F32), U32), U64);
  Value sign = (bits >> 31) << 63, exponent = (bits >> 23) & 0xff, mantissa = (bits & 0x7fffff) << 29;
  Value wide = where(eq(exponent, 0xff), like(bits, 0x7ff), exponent + (1023 - 127));
  return sign | where(eq(exponent, 0), like(bits, 0), (wide << 52) | mantissa);
}

}  // namespace

// The elements' bits, as uint64, combined by exclusive or.
TPU_LOWER("hash_tensor", [](Value x, Axes dims, bool /*keepdim: the result's shape*/, int64_t mode) {
  TPU_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
  Value bits =
      is_floating(x.dtype()) ? double_bits(x) : convert(is_signed_integer(x.dtype()) ? convert(x, S64) : x, U64);
  Value hash = reduce(bits, scalar(graph(), U64, 0), dims.dims, [](Value a, Value b) { return xor_(a, b); });
  return reshape(hash, result_type().dims);
});

}  // namespace tpu::lowering
