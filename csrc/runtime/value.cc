// SPDX-License-Identifier: Apache-2.0
#include "runtime/value.h"

#include <mutex>
#include <unordered_map>

#include "base/hash.h"
#include "runtime/device.h"
#include "runtime/memory.h"

namespace tpu::runtime {
namespace {

struct TypeHash {
  size_t operator()(const hlo::Type& type) const {
    Hash128 hash;
    hash.add(static_cast<uint64_t>(type.dtype));
    for (int64_t d : type.dims) hash.add(static_cast<uint64_t>(d));
    return static_cast<size_t>(hash.lo());
  }
};

}  // namespace

const hlo::Type* intern(const hlo::Type& type) {
  static auto* mutex = new std::mutex;
  static auto* types = new std::unordered_map<hlo::Type, const hlo::Type*, TypeHash>;
  std::lock_guard lock(*mutex);
  auto [it, fresh] = types->try_emplace(type, nullptr);
  if (fresh) it->second = new hlo::Type(type);
  return it->second;
}

DeviceValue::DeviceValue(const hlo::Type* type, int device, pjrt::Buffer buffer, bool counted)
    : type_(type), device_(device), counted_(counted ? type->bytes() : -1), buffer_(std::move(buffer)) {
  if (counted) memory::add(device_, counted_);
  state_.store(State::Ready, std::memory_order_release);
}

void DeviceValue::fill(pjrt::Buffer buffer) {
  buffer_ = std::move(buffer);
  counted_ = type_->bytes();
  memory::add(device_, counted_);
  state_.store(State::Ready, std::memory_order_release);
}

void DeviceValue::fail(std::shared_ptr<const Error> error) {
  failure_ = std::move(error);
  state_.store(State::Failed, std::memory_order_release);
}

DeviceValue::~DeviceValue() {
  if (counted_ >= 0) memory::remove(device_, counted_);
  // The plugin's threads are gone in a forked child: touching its objects could wait for them.
  if (in_forked_child()) buffer_.release();
}

}  // namespace tpu::runtime
