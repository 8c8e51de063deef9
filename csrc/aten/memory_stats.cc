// SPDX-License-Identifier: Apache-2.0
#include "aten/memory_stats.h"

#include "runtime/memory.h"

namespace tpu::aten {

c10::CachingDeviceAllocator::DeviceStats device_stats(int device) {
  const runtime::memory::Stats from = runtime::memory::stats(device);
  c10::CachingDeviceAllocator::DeviceStats out;
  // PyTorch's pools split by size; we count only all of it.
  auto fill = [](c10::CachingAllocator::StatArray& stats, int64_t current, int64_t peak, int64_t allocated,
                 int64_t freed) {
    auto& all = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    all.current = current;
    all.peak = peak;
    all.allocated = allocated;
    all.freed = freed;
  };
  for (auto* bytes : {&out.allocated_bytes, &out.reserved_bytes, &out.active_bytes, &out.requested_bytes})
    fill(*bytes, from.current, from.peak, from.allocated, from.freed);
  for (auto* counts : {&out.allocation, &out.segment, &out.active})
    fill(*counts, from.count_current, from.count_peak, from.count_allocated, from.count_freed);
  out.num_ooms = from.out_of_memory;
  out.num_device_alloc = from.count_allocated;
  out.num_device_free = from.count_freed;
  return out;
}

}  // namespace tpu::aten
