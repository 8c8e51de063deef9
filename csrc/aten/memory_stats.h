// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace tpu::aten {

// The counts of runtime/memory.h in PyTorch's form, for the device allocator. Nothing is cached,
// so that reserved memory is allocated memory and each buffer is a segment of its own.
c10::CachingDeviceAllocator::DeviceStats device_stats(int device);

}  // namespace tpu::aten
