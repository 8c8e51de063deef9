// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lowering/op.h"

namespace tpu::lowering {

// The polynomial with these coefficients, the highest power first.
inline Value horner(Value x, const std::vector<double>& coefficients) {
  Value r = like(x, coefficients.at(0));
  for (size_t i = 1; i < coefficients.size(); ++i) r = r * x + coefficients[i];
  return r;
}

// The Chebyshev series with these coefficients, the highest order first, over [-2, 2].
inline Value chebyshev_series(Value x, const std::vector<double>& coefficients) {
  Value b0 = like(x, coefficients.at(0)), b1 = like(x, 0), b2 = b1;
  for (size_t i = 1; i < coefficients.size(); ++i) {
    b2 = b1;
    b1 = b0;
    b0 = x * b1 - b2 + coefficients[i];
  }
  return (b0 - b2) * 0.5;
}

// n numbers from first to last (scalars); each half counts from its own end, so that both ends are exact.
Value evenly_spaced(Value first, Value last, int64_t n);

}  // namespace tpu::lowering
