// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "pjrt_c_api.h"

namespace tpu::pjrt {

// Owns a PJRT_Event: the completion, perhaps with an error, of a launch or a transfer.
// An empty event is ready. Destroying an event does not wait for it.
class Event {
 public:
  Event() = default;
  Event(const PJRT_Api* api, PJRT_Event* handle) : api_(api), handle_(handle) {}
  Event(Event&& other) noexcept : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    Event taken(std::move(other));  // what this held dies here, not with `other`
    std::swap(api_, taken.api_);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~Event() {
    if (handle_) destroy();
  }

  explicit operator bool() const { return handle_ != nullptr; }
  bool ready() const;
  void await() const;  // blocks; throws the error the event carries
  // Calls `f` once, with the error's text or null; at once in this thread when ready, else in
  // a thread of the plugin. `f` must not throw nor block; the event may be destroyed meanwhile.
  void on_ready(std::function<void(const std::string* error)> f) const;

 private:
  void destroy();
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* handle_ = nullptr;
};

}  // namespace tpu::pjrt
