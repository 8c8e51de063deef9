// SPDX-License-Identifier: Apache-2.0
#include "distributed/promised.h"

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/scalar.h"

namespace tpu::distributed {

using runtime::Runtime;
using runtime::ValueRef;

Promised::Promised(const hlo::Type& type, int device) {
  Runtime& runtime = Runtime::get();
  runtime::memory::reserve(device, type.bytes());
  promise_ = pjrt::Promise(runtime.client(), runtime::pjrt_type(type.dtype), type.dims.data(), type.dims.size(),
                           runtime.device(device));
  value_ = ValueRef(new runtime::DeviceValue(runtime::intern(type), device, promise_.buffer()));
}

void* Promised::memory() {
  if (value_->type()->bytes() == 0) return nullptr;
  if (Runtime::get().is_cpu()) return reinterpret_cast<void*>(value_->buffer().address());
  if (!staged_) staged_ = std::make_unique<char[]>(static_cast<size_t>(value_->type()->bytes()));
  return staged_.get();
}

void Promised::keep() {
  // Written in place: only the announcement is left.
  const auto size = staged_ ? static_cast<size_t>(value_->type()->bytes()) : 0;
  promise_.keep(staged_.get(), size);
  value_ = {};
}

void Promised::fail(const std::string& why) {
  if (promise_) promise_.fail(why);
  value_ = {};
}

const void* host_memory(const ValueRef& value, int64_t offset, std::unique_ptr<char[]>& staged) {
  const auto bytes = static_cast<size_t>(value->type()->bytes());
  value->buffer().ready().await();
  if (bytes == 0) return nullptr;
  if (Runtime::get().is_cpu()) return reinterpret_cast<const char*>(value->buffer().address()) + offset;
  staged = std::make_unique<char[]>(bytes);
  value->buffer().read(staged.get(), bytes);
  return staged.get() + offset;
}

}  // namespace tpu::distributed
