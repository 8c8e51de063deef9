// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace tpu::distributed {

// Runs calls one after the other, in the order in which they were posted, on a thread of its own. The thread comes with
// the first call and goes when there has been none for a while. All functions may be called from any thread; destroying
// a lane leaves what was posted to finish by itself.
class Lane {
 public:
  Lane();
  // `call` must not throw.
  void post(std::function<void()> call);
  // Waits until all that was posted is done; false where `until` comes first.
  bool drain(std::chrono::steady_clock::time_point until);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace tpu::distributed
