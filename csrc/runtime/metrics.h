// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tpu::runtime::metrics {

// Process-wide counters. Thread-safe.
struct Counters {
  int64_t launches = 0;  // programs run
  int64_t plans = 0;     // plan misses
  int64_t programs_compiled = 0;
  int64_t programs_from_disk = 0;
  double compile_seconds = 0;
};
Counters counters();
void count_launch();
void count_plan();
void count_compile(double seconds);
void count_disk_hit();
// Copies between host and device, in either direction, since the process began.
void count_transfer();
int64_t transfers();

// CPU fallbacks: operator name (with overload) -> calls.
void count_fallback(const std::string& op);
std::map<std::string, int64_t> fallback_stats();
void reset();  // all of it, and the compile log

}  // namespace tpu::runtime::metrics
