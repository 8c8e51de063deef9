// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "pjrt/event.h"

namespace tpu::runtime::profile {

// What a device did while a profile was taken. Times are nanoseconds of the system's clock.
//
// PJRT tells when a launch is finished, not when it began: `start` is the time of the launch, or the end of the
// launch before it on the device where that is later.
struct Span {
  enum class Kind { Program, Upload, Download };
  Kind kind = Kind::Program;
  std::string name;  // "aten::add.Tensor"
  std::string line;  // of the user's Python, "model.py:25"; empty where there is none
  int device = 0;
  int64_t stream = 0;
  uint64_t correlation = 0;  // what the launching thread had pushed last; 0: nothing
  int64_t queued = 0, start = 0, end = 0;
  int64_t bytes = 0;  // of a transfer
};

namespace detail {
extern std::atomic<bool> on;
}

// Whether a profile is being taken.
inline bool on() { return detail::on.load(std::memory_order_relaxed); }

// What a profile holds.
struct Options {
  bool lines = true;      // where in the user's Python each launch was made; a few microseconds each
  bool transfers = true;  // copies between host and device
};
// For the profiles begun from now on.
void set_options(Options options);

// One profile at a time in a process; a second begin() drops what the first has. end() waits for what was launched.
void begin();
std::vector<Span> end();

int64_t now();

// Told by the executor. `queued`: now() before the launch. Do nothing where no profile is being taken.
void launched(const std::string& name, int device, int64_t queued, const pjrt::Event& done);
void transferred(Span::Kind kind, int device, int64_t start, int64_t bytes);

// The PyTorch operators that the calling thread is in, by the numbers that its profiler gives them.
void push_correlation(uint64_t id);
void pop_correlation();

}  // namespace tpu::runtime::profile
