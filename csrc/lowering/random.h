// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/promote.h"

namespace tpu::lowering {

// The random numbers of one call: Philox 4x32 keyed by the generator's seed. The 128-bit counter
// has the generator's offset below and the number of the draw above, so that draws of one call, also
// those in a loop, never overlap, and a call moves the offset on by its largest draw only.
class Stream {
 public:
  explicit Stream(Random random) : random_(random) {}
  // Uniform words of any shape.
  Value bits32(const Dims& dims);
  Value bits64(const Dims& dims);
  // Uniform in [0, 1): a multiple of 2^-24, 2^-53, 2^-11, 2^-8 for F32, F64, F16, BF16, so that 1
  // can't come out. F16 and BF16 are given in F32.
  Value uniform(DType t, const Dims& dims);
  // Uniform in (0, 1], with the full 32 (53) bits near 0: what logarithms want. t: F32 or F64.
  Value uniform_positive(DType t, const Dims& dims);
  // Standard normal, by Box-Muller; tails to 6.7 (8.6) sigma. t: F32 or F64.
  Value normal(DType t, const Dims& dims);
  // Exponential of rate 1; never 0 or infinite. t: F32 or F64; `smallest`: least value to give.
  Value exponential(DType t, const Dims& dims, double smallest);
  // The stream of round `n` (U64) of a loop. Draws inside don't count in the stream outside.
  Stream round(Value n) const;

 private:
  Value bits(DType word, const Dims& dims);

  Random random_;
  uint64_t draw_ = 0;
  Value round_ = {};
};

// F64 for F64, else F32: what random numbers of a tensor of dtype `t` are computed in.
inline DType random_dtype(DType t) { return t == F64 || t == C128 ? F64 : F32; }
// Digits of the significand, the hidden one included.
int mantissa_digits(DType t);
// A Scalar or float operand in dtype `t`.
inline Value number(Value v, DType t) { return convert(v, t); }

}  // namespace tpu::lowering
