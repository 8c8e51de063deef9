// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/device.h"

namespace tpu::runtime::memory {
namespace {

constexpr size_t kMaxDevices = 128;  // c10::DeviceIndex is an int8_t

// One device's counts, all relaxed atomics: a launch adds to them, so no lock.
struct Counts {
  std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0};
  std::atomic<int64_t> count_current{0}, count_peak{0}, count_allocated{0}, count_freed{0};
  std::atomic<int64_t> out_of_memory{0};
};

Counts& counts(int device) {
  static std::array<Counts, kMaxDevices> all;
  TPU_INTERNAL(device >= 0 && static_cast<size_t>(device) < kMaxDevices, "memory counts of device ", device);
  return all[static_cast<size_t>(device)];
}

int64_t get(const std::atomic<int64_t>& counter) { return counter.load(std::memory_order_relaxed); }

int64_t bump(std::atomic<int64_t>& counter, int64_t by) {
  return counter.fetch_add(by, std::memory_order_relaxed) + by;
}

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = get(peak);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// "1.50 GiB", "12 bytes"
std::string readable(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return text(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char out[32];
  std::snprintf(out, sizeof out, "%.2f %s", value, kUnits[unit]);
  return out;
}

}  // namespace

void add(int device, int64_t bytes) {
  Counts& c = counts(device);
  raise_to(c.peak, bump(c.current, bytes));
  raise_to(c.count_peak, bump(c.count_current, 1));
  bump(c.allocated, bytes);
  bump(c.count_allocated, 1);
}

void remove(int device, int64_t bytes) {
  Counts& c = counts(device);
  bump(c.current, -bytes);
  bump(c.count_current, -1);
  bump(c.freed, bytes);
  bump(c.count_freed, 1);
}

void reserve(int device, int64_t bytes) {
  const int64_t bound = limit(device);
  Counts& c = counts(device);
  const int64_t used = get(c.current);
  // Compared by subtraction: used + bytes may overflow.
  if (bound <= 0 || bytes <= bound - used) return;
  bump(c.out_of_memory, 1);
  fail(ErrorKind::OutOfMemory, "tpu:", device, " is out of memory: tried to allocate ", readable(bytes), ", but ",
       readable(used), " of ", readable(bound),
       " are in use; free tensors, use a smaller batch, or raise TORCH_TPU_MEMORY_LIMIT_MB");
}

Stats stats(int device) {
  const Counts& c = counts(device);
  Stats out;
  out.current = get(c.current);
  out.peak = get(c.peak);
  out.allocated = get(c.allocated);
  out.freed = get(c.freed);
  out.count_current = get(c.count_current);
  out.count_peak = get(c.count_peak);
  out.count_allocated = get(c.count_allocated);
  out.count_freed = get(c.count_freed);
  out.out_of_memory = get(c.out_of_memory);
  return out;
}

void reset_peak(int device) {
  Counts& c = counts(device);
  c.peak.store(get(c.current), std::memory_order_relaxed);
  c.count_peak.store(get(c.count_current), std::memory_order_relaxed);
}

void reset_accumulated(int device) {
  Counts& c = counts(device);
  for (auto* counter : {&c.allocated, &c.freed, &c.count_allocated, &c.count_freed, &c.out_of_memory})
    counter->store(0, std::memory_order_relaxed);
}

int64_t limit(int) { return Runtime::get().memory_limit(); }

void keep_freed_pages() {
#ifdef __GLIBC__
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text(*variable);
    if (text.starts_with("MALLOC_") || text.starts_with("GLIBC_TUNABLES=")) return;
  }
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest it takes
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
}

void release_freed_pages() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace tpu::runtime::memory
