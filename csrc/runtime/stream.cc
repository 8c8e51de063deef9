// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/fuse.h"

namespace tpu::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// The end of some launches. Lock order: a stream's mutex, then one completion's; never two of these.
class Completion {
 public:
  void expect() {
    std::lock_guard lock(mutex_);
    ++pending_;
  }
  // One expected piece of work is over. Runs in any thread, also the plugin's.
  void done(const std::string* failure) {
    std::vector<std::function<void()>> next;
    {
      std::lock_guard lock(mutex_);
      if (failure && error_.empty()) error_ = *failure;
      if (--pending_ > 0) return;
      finished_ = true;
      when_ = Clock::now();
      next.swap(then_);
    }
    changed_.notify_all();
    for (auto& call : next) call();
  }
  bool finished() {
    std::lock_guard lock(mutex_);
    return finished_;
  }
  Clock::time_point when() {
    std::lock_guard lock(mutex_);
    return when_;
  }
  // Calls `f` once this is finished, perhaps at once.
  void when_finished(std::function<void()> f) {
    {
      std::lock_guard lock(mutex_);
      if (!finished_) {
        then_.push_back(std::move(f));
        return;
      }
    }
    f();
  }
  // Blocks; returns the first error, empty where all went well.
  std::string wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_; });
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int pending_ = 1;  // one more than expect() said, until the one that makes it calls done()
  bool finished_ = false;
  Clock::time_point when_;
  std::string error_;
  std::vector<std::function<void()>> then_;
};
using CompletionPtr = std::shared_ptr<Completion>;

struct Stream {
  std::mutex mutex;
  std::deque<pjrt::Event> launches;  // those not known to be finished
  std::vector<CompletionPtr> waits;  // the next launch starts after these
  std::atomic<bool> has_waits{false};
  std::string error;                             // of a launch no longer listed; the next synchronize throws it
  std::vector<std::weak_ptr<Completion>> marks;  // recorded here and perhaps not finished
  size_t compact_at = 64;

  // All below: with the mutex held.
  void collect(pjrt::Event& event) {
    try {
      event.await();  // ready: returns at once, or throws the launch's error
    } catch (const Error& e) {
      if (error.empty()) error = e.what();
    }
  }
  void prune() {
    while (!launches.empty() && launches.front().ready()) {
      collect(launches.front());
      launches.pop_front();
    }
    if (launches.size() < compact_at) return;
    // One slow launch in front must not keep all later ones.
    std::deque<pjrt::Event> left;
    for (auto& event : launches) {
      if (event.ready())
        collect(event);
      else
        left.push_back(std::move(event));
    }
    launches.swap(left);
    compact_at = std::max<size_t>(64, 2 * launches.size());
  }
  void drop_finished_waits() {
    std::erase_if(waits, [](const CompletionPtr& wait) { return wait->finished(); });
    has_waits.store(!waits.empty(), std::memory_order_release);
  }
};

constexpr int kMaxDevices = 128;  // c10::DeviceIndex is an int8_t
constexpr int64_t kPool = 32;     // beside the default stream; new_stream() goes round, as CUDA's pool does

struct DeviceStreams {
  std::array<Stream, kPool + 1> streams;
  std::atomic<int64_t> made{0};
};

// Leaked: launches may finish while the process exits.
DeviceStreams& streams_of(int device) {
  static auto* all = new std::array<std::atomic<DeviceStreams*>, kMaxDevices>{};
  TPU_INTERNAL(device >= 0 && device < kMaxDevices, "streams of device ", device);
  auto& place = (*all)[static_cast<size_t>(device)];
  if (DeviceStreams* found = place.load(std::memory_order_acquire)) return *found;
  auto fresh = std::make_unique<DeviceStreams>();
  DeviceStreams* expected = nullptr;
  if (place.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *expected;
}

Stream& find(int device, int64_t id) {
  TPU_CHECK(id >= 0 && id <= kPool, "stream ", id, " of tpu:", device, " does not exist");
  return streams_of(device).streams[static_cast<size_t>(id)];
}

int64_t& current_id(int device) {
  thread_local std::array<int64_t, kMaxDevices> ids{};
  TPU_INTERNAL(device >= 0 && device < kMaxDevices, "stream of device ", device);
  return ids[static_cast<size_t>(device)];
}

// Makes `completion` cover what the stream has to finish now, waits included.
void mark_tail(Stream& stream, const CompletionPtr& completion) {
  {
    std::lock_guard lock(stream.mutex);
    stream.prune();
    std::erase_if(stream.marks, [](const auto& mark) {
      const CompletionPtr alive = mark.lock();
      return !alive || alive->finished();
    });
    stream.marks.push_back(completion);
    for (auto& event : stream.launches) {
      completion->expect();
      event.on_ready([completion](const std::string* error) { completion->done(error); });
    }
    for (auto& wait : stream.waits) {
      completion->expect();
      wait->when_finished([completion] { completion->done(nullptr); });
    }
  }
  completion->done(nullptr);
}

// Blocks until `completion`, the tail of `stream`, is over; returns the error to throw.
std::string finish(Stream& stream, Completion& completion) {
  std::string error = completion.wait();
  // Events that marked this work before hear of its end from a thread of the plugin, perhaps a
  // moment later: whoever synchronizes may read their times at once.
  std::vector<std::weak_ptr<Completion>> marks;
  {
    std::lock_guard lock(stream.mutex);
    marks = stream.marks;
  }
  for (const auto& mark : marks) {
    const CompletionPtr alive = mark.lock();
    if (alive.get() == &completion) break;  // those after it may cover later work
    if (alive) alive->wait();
  }
  std::lock_guard lock(stream.mutex);
  stream.prune();  // moves errors that `completion` has seen to stream.error: reported once
  stream.drop_finished_waits();
  std::string earlier = std::exchange(stream.error, {});
  return earlier.empty() ? error : earlier;
}

}  // namespace

int64_t current_stream(int device) { return current_id(device); }

void set_current_stream(int device, int64_t id) {
  if (current_id(device) == id) return;  // autograd sets the forward's stream at each of its steps
  fuse::flush(device);
  find(device, id);
  current_id(device) = id;
}

int64_t new_stream(int device) { return 1 + streams_of(device).made.fetch_add(1) % kPool; }

void before_launch(int device) {
  Stream& stream = find(device, current_id(device));
  if (!stream.has_waits.load(std::memory_order_acquire)) [[likely]]
    return;
  std::vector<CompletionPtr> waits;
  {
    std::lock_guard lock(stream.mutex);
    waits = stream.waits;  // a copy: a second thread that launches here has to wait too
  }
  for (auto& wait : waits) wait->wait();
  std::lock_guard lock(stream.mutex);
  stream.drop_finished_waits();
}

void after_launch(int device, pjrt::Event done) {
  if (!done) return;
  Stream& stream = find(device, current_id(device));
  std::lock_guard lock(stream.mutex);
  stream.prune();
  stream.launches.push_back(std::move(done));
}

bool stream_idle(int device, int64_t id) {
  fuse::flush(device);
  if (in_forked_child()) return true;
  Stream& stream = find(device, id);
  std::lock_guard lock(stream.mutex);
  stream.prune();
  stream.drop_finished_waits();
  return stream.waits.empty() && std::all_of(stream.launches.begin(), stream.launches.end(),
                                             [](const pjrt::Event& event) { return event.ready(); });
}

void synchronize_stream(int device, int64_t id) {
  fuse::flush(device);
  if (in_forked_child()) return;
  Stream& stream = find(device, id);
  auto tail = std::make_shared<Completion>();
  mark_tail(stream, tail);
  if (std::string error = finish(stream, *tail); !error.empty()) throw Error(ErrorKind::Runtime, error);
}

void synchronize_device(int device) {
  fuse::flush(device);
  if (in_forked_child()) return;
  DeviceStreams& all = streams_of(device);
  const auto count = static_cast<size_t>(std::min(all.made.load(), kPool)) + 1;
  std::vector<CompletionPtr> tails(count);
  for (size_t i = 0; i < count; ++i) {
    tails[i] = std::make_shared<Completion>();
    mark_tail(all.streams[i], tails[i]);
  }
  std::string first;
  for (size_t i = 0; i < count; ++i)
    if (std::string error = finish(all.streams[i], *tails[i]); first.empty()) first = std::move(error);
  if (!first.empty()) throw Error(ErrorKind::Runtime, first);
}

struct Marker::State : Completion {};

void Marker::record(int device, int64_t stream) {
  fuse::flush(device);
  auto state = std::make_shared<State>();
  if (in_forked_child())
    state->done(nullptr);
  else
    mark_tail(find(device, stream), state);
  state_ = std::move(state);
}

bool Marker::recorded() const { return state_ != nullptr; }
bool Marker::ready() const { return !state_ || state_->finished(); }

void Marker::wait() const {
  if (state_) state_->wait();  // an error belongs to the stream, whose synchronize throws it
}

void Marker::block(int device, int64_t stream) const {
  fuse::flush(device);
  if (ready()) return;
  Stream& waiting = find(device, stream);
  std::lock_guard lock(waiting.mutex);
  waiting.waits.push_back(state_);
  waiting.has_waits.store(true, std::memory_order_release);
}

double Marker::elapsed_since(const Marker& start) const {
  TPU_CHECK(recorded() && start.recorded(), "both events must be recorded before their times are compared");
  TPU_CHECK(ready() && start.ready(), "both events must be completed before their times are compared");
  return std::chrono::duration<double, std::milli>(state_->when() - start.state_->when()).count();
}

}  // namespace tpu::runtime
