// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pjrt/buffer.h"
#include "runtime/plan.h"
#include "runtime/value.h"

namespace tpu::runtime {

PJRT_Buffer_Type pjrt_type(hlo::DType t);

// `s`, converted to the rank-0 `type`, on the device. Recently used ones are kept there. Thread-safe.
ValueRef scalar_value(const Scalar& s, const hlo::Type* type, int device);

}  // namespace tpu::runtime
