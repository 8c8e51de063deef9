// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/op.h"

namespace tpu::lowering {

// hlo::fft over the last dimensions, for element types that the target's fft does not take.
Value fft_by_products(Value x, FftType type, const Dims& length);

}  // namespace tpu::lowering
