// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tpu::runtime::memory {

// Bytes of device memory that tensors hold, counted by us (the CPU plugins report none).
struct Stats {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;                          // bytes; the last two accumulate
  int64_t count_current = 0, count_peak = 0, count_allocated = 0, count_freed = 0;  // buffers
  int64_t out_of_memory = 0;                                                        // refusals
};

void add(int device, int64_t bytes);
void remove(int device, int64_t bytes);
// Throws Error(OutOfMemory) naming need, use and limit when `bytes` more don't fit on the device.
void reserve(int device, int64_t bytes);
Stats stats(int device);
void reset_peak(int device);
void reset_accumulated(int device);
int64_t limit(int device);

// The CPU plugin's device memory is the heap: has the C library keep freed blocks for the next
// operator, where it would hand them back to the system and fault them in anew. Leaves settings of
// the user's (MALLOC_*, GLIBC_TUNABLES) alone.
void keep_freed_pages();
// Hands kept blocks back to the system: what empty_cache() can do on the CPU plugin.
void release_freed_pages();

}  // namespace tpu::runtime::memory
