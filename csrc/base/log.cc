// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdio>

#include "base/env.h"
#include "base/progress.h"

namespace tpu::log {

std::atomic<int> level_{-1};

int read_level() {
  int value = static_cast<int>(env::get_int("TORCH_TPU_DEBUG"));
  int unread = -1;  // a level set meanwhile wins
  return level_.compare_exchange_strong(unread, value) ? value : unread;
}

void set_level(int level) { level_.store(level, std::memory_order_relaxed); }

bool compiles() {
  static const bool asked = env::get_string("TORCH_TPU_LOG") == "compiles";
  return asked || level() >= 1;
}

namespace {

// Never closed: a static's destructor may still log at exit.
std::FILE* out() {
  static std::FILE* file = [] {
    const std::string path = env::get_string("TORCH_TPU_LOG_FILE");
    std::FILE* opened = path.empty() ? stderr : std::fopen(path.c_str(), "a");
    return opened ? opened : stderr;
  }();
  return file;
}

std::atomic<void (*)(const std::string&)> warning_sink{nullptr};

}  // namespace

bool to_stderr() { return compiles() && out() == stderr; }

void write(const std::string& line) {
  if (out() == stderr) Progress::erase();
  const std::string whole = "torch_tpu: " + line + "\n";
  std::fwrite(whole.data(), 1, whole.size(), out());
  std::fflush(out());
}

void warn(const std::string& text) {
  if (const auto sink = warning_sink.load()) return sink(text);
  write("warning: " + text);
}

void set_warning_sink(void (*sink)(const std::string&)) { warning_sink.store(sink); }

}  // namespace tpu::log
