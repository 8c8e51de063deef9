// SPDX-License-Identifier: Apache-2.0
#include "runtime/metrics.h"

#include <atomic>
#include <mutex>

#include "runtime/compile_log.h"

namespace tpu::runtime::metrics {
namespace {

std::atomic<int64_t> launches{0}, plans{0}, compiled{0}, from_disk{0}, compile_nanoseconds{0};
std::atomic<int64_t> transferred{0};

// Leaked: other threads may still count while the process exits.
struct Fallbacks {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;
};
Fallbacks& fallbacks() {
  static auto* instance = new Fallbacks;
  return *instance;
}

}  // namespace

Counters counters() {
  Counters out;
  out.launches = launches.load(std::memory_order_relaxed);
  out.plans = plans.load(std::memory_order_relaxed);
  out.programs_compiled = compiled.load(std::memory_order_relaxed);
  out.programs_from_disk = from_disk.load(std::memory_order_relaxed);
  out.compile_seconds = static_cast<double>(compile_nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
  return out;
}

void count_launch() { launches.fetch_add(1, std::memory_order_relaxed); }
void count_plan() { plans.fetch_add(1, std::memory_order_relaxed); }
void count_transfer() { transferred.fetch_add(1, std::memory_order_relaxed); }
int64_t transfers() { return transferred.load(std::memory_order_relaxed); }
void count_disk_hit() { from_disk.fetch_add(1, std::memory_order_relaxed); }

void count_compile(double seconds) {
  compiled.fetch_add(1, std::memory_order_relaxed);
  compile_nanoseconds.fetch_add(static_cast<int64_t>(seconds * 1e9), std::memory_order_relaxed);
}

void count_fallback(const std::string& op) {
  Fallbacks& all = fallbacks();
  std::lock_guard lock(all.mutex);
  ++all.calls[op];
}

std::map<std::string, int64_t> fallback_stats() {
  Fallbacks& all = fallbacks();
  std::lock_guard lock(all.mutex);
  return all.calls;
}

void reset() {
  for (auto* counter : {&launches, &plans, &compiled, &from_disk, &compile_nanoseconds})
    counter->store(0, std::memory_order_relaxed);
  compile_log::clear();
  Fallbacks& all = fallbacks();
  std::lock_guard lock(all.mutex);
  all.calls.clear();
}

}  // namespace tpu::runtime::metrics
