// SPDX-License-Identifier: Apache-2.0
#include "pjrt/event.h"

#include <memory>

#include "pjrt/call.h"

namespace tpu::pjrt {

void Event::destroy() {
  if (exiting.load(std::memory_order_relaxed)) return;
  auto a = args<PJRT_Event_Destroy_Args>();
  a.event = handle_;
  if (PJRT_Error* error = api_->PJRT_Event_Destroy(&a)) take_text(api_, error);
  handle_ = nullptr;
}

bool Event::ready() const {
  if (!handle_) return true;
  auto a = args<PJRT_Event_IsReady_Args>();
  a.event = handle_;
  call(api_, &PJRT_Api::PJRT_Event_IsReady, a, "event");
  return a.is_ready;
}

void Event::await() const {
  if (!handle_) return;
  auto a = args<PJRT_Event_Await_Args>();
  a.event = handle_;
  call(api_, &PJRT_Api::PJRT_Event_Await, a, "wait");
}

void Event::on_ready(std::function<void(const std::string* error)> f) const {
  if (!handle_) return f(nullptr);
  struct State {
    const PJRT_Api* api;
    std::function<void(const std::string*)> f;
  };
  auto state = std::make_unique<State>(State{api_, std::move(f)});
  auto a = args<PJRT_Event_OnReady_Args>();
  a.event = handle_;
  a.user_arg = state.get();
  a.callback = [](PJRT_Error* error, void* arg) {
    std::unique_ptr<State> state(static_cast<State*>(arg));
    if (!error) return state->f(nullptr);
    std::string message = take_text(state->api, error);
    state->f(&message);
  };
  state.release();  // the callback's, which may have run when the call returns
  call(api_, &PJRT_Api::PJRT_Event_OnReady, a, "event callback");
}

}  // namespace tpu::pjrt
