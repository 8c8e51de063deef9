// SPDX-License-Identifier: Apache-2.0
#include "runtime/compile_log.h"

#include <deque>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace tpu::runtime::compile_log {
namespace {

constexpr size_t kMost = 4096;

// Leaked: other threads may still compile while the process exits.
struct Kept {
  std::mutex mutex;
  std::deque<Entry> entries;
  int64_t dropped = 0;
};
Kept& kept() {
  static auto* instance = new Kept;
  return *instance;
}

}  // namespace

void add(Entry entry) {
  if (log::compiles()) {
    const std::string where = entry.line.empty() ? "" : " at " + entry.line;
    log::write(text(entry.from_disk ? "loaded " : "compiled ", entry.name, " in ",
                    static_cast<int64_t>(entry.seconds * 1e3), " ms", where, ": ", entry.reason));
  }
  Kept& all = kept();
  std::lock_guard lock(all.mutex);
  all.entries.push_back(std::move(entry));
  if (all.entries.size() > kMost) {
    all.entries.pop_front();
    ++all.dropped;
  }
}

Report report() {
  Kept& all = kept();
  std::lock_guard lock(all.mutex);
  return {{all.entries.begin(), all.entries.end()}, all.dropped};
}

void clear() {
  Kept& all = kept();
  std::lock_guard lock(all.mutex);
  all.entries.clear();
  all.dropped = 0;
}

}  // namespace tpu::runtime::compile_log
