// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"

namespace tpu::log {

// TORCH_TPU_DEBUG until set_level; -1 until first asked.
extern std::atomic<int> level_;
int read_level();

inline int level() {
  int value = level_.load(std::memory_order_relaxed);
  return value >= 0 ? value : read_level();
}
void set_level(int level);

// Whether each compilation is logged: TORCH_TPU_LOG=compiles, or TORCH_TPU_DEBUG from 1 on.
bool compiles();
// Whether log lines are wanted and go to stderr.
bool to_stderr();

// One line, with the prefix, in one write: lines of several threads do not mix.
void write(const std::string& line);

// Tells the user, as a Python warning once the layer that knows Python has set the way, else as a log line.
void warn(const std::string& text);
void set_warning_sink(void (*sink)(const std::string&));

}  // namespace tpu::log

// Logs a line when TORCH_TPU_DEBUG is at least `lvl`; the arguments are not evaluated otherwise.
#define TPU_LOG(lvl, ...)                          \
  do {                                             \
    if (::tpu::log::level() >= (lvl)) [[unlikely]] \
      ::tpu::log::write(::tpu::text(__VA_ARGS__)); \
  } while (false)
