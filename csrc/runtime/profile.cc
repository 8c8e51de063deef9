// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/location.h"
#include "runtime/stream.h"

namespace tpu::runtime::profile {

std::atomic<bool> detail::on{false};

namespace {

// What is launched late keeps the profile it belongs to alive.
struct Profile {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Span> spans;
  int64_t pending = 0;
  Options options;
};

std::mutex& current_mutex() {
  static std::mutex mutex;
  return mutex;
}

Options& next_options() {
  static Options options;
  return options;
}

std::shared_ptr<Profile>& current() {
  static auto& profile = *new std::shared_ptr<Profile>;  // never destroyed: launches may end after main
  return profile;
}

std::shared_ptr<Profile> taken() {
  std::lock_guard lock(current_mutex());
  return current();
}

std::vector<uint64_t>& correlations() {
  thread_local std::vector<uint64_t> ids;
  return ids;
}

Span span(const Profile& profile, Span::Kind kind, std::string name, int device) {
  Span s;
  s.kind = kind;
  s.name = std::move(name);
  if (profile.options.lines) s.line = user_location();
  s.device = device;
  s.stream = current_stream(device);
  if (!correlations().empty()) s.correlation = correlations().back();
  return s;
}

}  // namespace

int64_t now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

void set_options(Options options) {
  std::lock_guard lock(current_mutex());
  next_options() = options;
}

void begin() {
  std::lock_guard lock(current_mutex());
  current() = std::make_shared<Profile>();
  current()->options = next_options();
  detail::on = true;
}

std::vector<Span> end() {
  std::shared_ptr<Profile> profile;
  {
    std::lock_guard lock(current_mutex());
    detail::on = false;
    profile.swap(current());
  }
  if (!profile) return {};
  std::unique_lock lock(profile->mutex);
  profile->changed.wait(lock, [&] { return profile->pending == 0; });
  std::vector<Span> spans = std::move(profile->spans);
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.end < b.end; });
  std::vector<int64_t> busy_until;  // by device
  for (Span& s : spans) {
    const auto d = static_cast<size_t>(s.device);
    if (s.kind != Span::Kind::Program) continue;
    if (busy_until.size() <= d) busy_until.resize(d + 1, 0);
    s.start = std::min(std::max(s.queued, busy_until[d]), s.end);
    busy_until[d] = s.end;
  }
  return spans;
}

void launched(const std::string& name, int device, int64_t queued, const pjrt::Event& done) {
  std::shared_ptr<Profile> profile = taken();
  if (!profile) return;
  auto s = std::make_shared<Span>(span(*profile, Span::Kind::Program, name, device));
  s->queued = s->start = queued;
  {
    std::lock_guard lock(profile->mutex);
    ++profile->pending;
  }
  const auto finish = [profile, s](const std::string*) {
    s->end = now();
    std::lock_guard lock(profile->mutex);
    profile->spans.push_back(std::move(*s));
    --profile->pending;
    profile->changed.notify_all();
  };
  if (done) {
    done.on_ready(finish);
  } else {
    finish(nullptr);
  }
}

void transferred(Span::Kind kind, int device, int64_t start, int64_t bytes) {
  std::shared_ptr<Profile> profile = taken();
  if (!profile || !profile->options.transfers) return;
  Span s = span(*profile, kind, kind == Span::Kind::Upload ? "upload" : "download", device);
  s.queued = s.start = start;
  s.end = now();
  s.bytes = bytes;
  std::lock_guard lock(profile->mutex);
  profile->spans.push_back(std::move(s));
}

void push_correlation(uint64_t id) { correlations().push_back(id); }

void pop_correlation() {
  if (!correlations().empty()) correlations().pop_back();
}

}  // namespace tpu::runtime::profile
