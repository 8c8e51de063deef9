// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/env.h"
#include "base/log.h"

namespace tpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kTick = std::chrono::seconds(1);

// Leaked: a thread may still compile while the process exits.
struct Terminal {
  std::mutex mutex;
  const void* owner = nullptr;  // whose line it is
  bool shown = false;
};
Terminal& terminal() {
  static auto* instance = new Terminal;
  return *instance;
}

void put(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
}

constexpr const char* kErase = "\r\x1b[K";

}  // namespace

struct Progress::Ticker {
  explicit Ticker(std::string text) : what(std::move(text)), thread([this] { run(); }) {}
  ~Ticker() {
    {
      std::lock_guard lock(mutex);
      done = true;
    }
    changed.notify_one();
    thread.join();
  }

  void run() {
    const auto start = Clock::now();
    std::unique_lock lock(mutex);
    for (auto next = start + kPatience; !changed.wait_until(lock, next, [this] { return done; }); next += kTick) {
      Terminal& screen = terminal();
      std::lock_guard held(screen.mutex);
      if (screen.owner && screen.owner != this) continue;
      screen.owner = this;
      screen.shown = true;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
      put(kErase + text("torch_tpu: compiling ", what, ", ", seconds, " s"));
    }
    Terminal& screen = terminal();
    std::lock_guard held(screen.mutex);
    if (screen.owner != this) return;
    if (screen.shown) put(kErase);
    screen.owner = nullptr;
    screen.shown = false;
  }

  std::string what;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread thread;  // last: it uses the others
};

Progress::Progress(std::string what) {
  if (isatty(STDERR_FILENO) && !log::to_stderr() && env::get_bool("TORCH_TPU_PROGRESS"))
    ticker_ = std::make_unique<Ticker>(std::move(what));
}

Progress::~Progress() = default;

void Progress::erase() {
  Terminal& screen = terminal();
  std::lock_guard held(screen.mutex);
  if (screen.shown) put(kErase);
  screen.shown = false;
}

}  // namespace tpu
