// SPDX-License-Identifier: Apache-2.0
#include "distributed/lane.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace tpu::distributed {

struct Lane::State {
  std::mutex mutex;
  std::condition_variable posted, done;
  std::deque<std::function<void()>> calls;
  bool running = false;  // there is a thread
  bool busy = false;     // it is in a call
};

Lane::Lane() : state_(std::make_shared<State>()) {}

void Lane::post(std::function<void()> call) {
  std::lock_guard lock(state_->mutex);
  state_->calls.push_back(std::move(call));
  if (state_->running) {
    state_->posted.notify_one();
    return;
  }
  state_->running = true;
  std::thread([state = state_] { run(state); }).detach();
}

bool Lane::drain(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(state_->mutex);
  return state_->done.wait_until(lock, until, [this] { return state_->calls.empty() && !state_->busy; });
}

void Lane::run(const std::shared_ptr<State>& state) {
  constexpr auto kIdle = std::chrono::seconds(5);
  std::unique_lock lock(state->mutex);
  for (;;) {
    if (!state->posted.wait_for(lock, kIdle, [&] { return !state->calls.empty(); })) {
      state->running = false;
      return;
    }
    {
      std::function<void()> call = std::move(state->calls.front());
      state->calls.pop_front();
      state->busy = true;
      lock.unlock();
      call();
    }  // what the call held goes before the lane counts as drained
    lock.lock();
    state->busy = false;
    if (state->calls.empty()) state->done.notify_all();
  }
}

}  // namespace tpu::distributed
