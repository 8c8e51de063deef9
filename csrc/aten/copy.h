// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/slot.h"

namespace torch {
class Library;
}

namespace tpu::aten {

// A copy of a CPU tensor on the device, contiguous.
at::Tensor to_device(const at::Tensor& cpu, int device);

// The slot's bytes in a buffer of `nbytes`: cut, or padded with zeros.
runtime::ValueRef resized_value(runtime::Slot& slot, size_t nbytes);

void register_copies(torch::Library& library);

// Zeros of a type, made on the device.
runtime::ValueRef zeros_value(const hlo::Type* type, int device);

}  // namespace tpu::aten
