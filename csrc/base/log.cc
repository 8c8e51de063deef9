// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdio>

#include "base/env.h"

namespace tpu::log {

std::atomic<int> level_{-1};

int read_level() {
  int value = static_cast<int>(env::get_int("TORCH_TPU_DEBUG"));
  int unread = -1;  // a level set meanwhile wins
  return level_.compare_exchange_strong(unread, value) ? value : unread;
}

void set_level(int level) { level_.store(level, std::memory_order_relaxed); }

void write(const std::string& line) {
  // Never closed: a static's destructor may still log at exit.
  static std::FILE* out = [] {
    std::string path = env::get_string("TORCH_TPU_LOG");
    std::FILE* file = path.empty() ? stderr : std::fopen(path.c_str(), "a");
    return file ? file : stderr;
  }();
  std::string whole = "torch_tpu: " + line + "\n";
  std::fwrite(whole.data(), 1, whole.size(), out);
  std::fflush(out);
}

}  // namespace tpu::log
