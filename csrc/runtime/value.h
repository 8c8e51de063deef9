// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/error.h"
#include "hlo/type.h"
#include "pjrt/buffer.h"

namespace tpu::runtime {

// The one shared copy of an equal type: compare by address. Lives for the process. Thread-safe.
const hlo::Type* intern(const hlo::Type& type);

// The numbers that the elements of an integer value lie in, ends included; all of them where nothing is known.
struct Range {
  int64_t low = INT64_MIN, high = INT64_MAX;
  bool known() const { return low != INT64_MIN || high != INT64_MAX; }
  bool within(int64_t from, int64_t to) const { return low >= from && high <= to; }
};

// What a storage held at one moment: immutable once its buffer is there. Shared by slots, by
// launches in flight and by deferred graphs; the last owner frees the device memory.
class DeviceValue {
 public:
  DeviceValue(const hlo::Type* type, int device) : type_(type), device_(device) {}
  // Takes over `buffer`; `counted`: its bytes stand in the memory statistics.
  DeviceValue(const hlo::Type* type, int device, pjrt::Buffer buffer, bool counted = true);
  ~DeviceValue();
  DeviceValue(const DeviceValue&) = delete;
  DeviceValue& operator=(const DeviceValue&) = delete;

  const hlo::Type* type() const { return type_; }
  int device() const { return device_; }
  bool ready_to_use() const { return state_.load(std::memory_order_acquire) == State::Ready; }
  // Waits in a deferred graph (fuse.h).
  bool pending() const { return state_.load(std::memory_order_acquire) == State::Pending; }
  void set_pending() { state_.store(State::Pending, std::memory_order_release); }
  // A pending value comes to its buffer, or to the error that kept it from it.
  void fill(pjrt::Buffer buffer);
  void fail(std::shared_ptr<const Error> error);
  // Throws the error of fail(), if that is what became of the value.
  void check() const {
    if (state_.load(std::memory_order_acquire) == State::Failed) throw Error(*failure_);
  }
  pjrt::Buffer& buffer() { return buffer_; }
  // What is known of the elements; set before others see the value.
  const Range& range() const { return range_; }
  void set_range(Range range) { range_ = range; }

  void retain() { owners_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  int owners() const { return owners_.load(std::memory_order_acquire); }

 private:
  friend class FusedGraph;  // its marks
  enum class State : uint8_t { Empty, Ready, Pending, Failed };
  const hlo::Type* type_;
  int device_;
  std::atomic<int> owners_{0};
  std::atomic<State> state_{State::Empty};
  uint64_t epoch_ = 0;  // of the flush that `id_` and `uses_` belong to; under the graph's lock
  int id_ = 0, uses_ = 0;
  std::shared_ptr<const Error> failure_;
  Range range_;
  int64_t counted_ = -1;  // bytes in the statistics; -1: none
  pjrt::Buffer buffer_;
};

// Owning pointer to a DeviceValue.
class ValueRef {
 public:
  ValueRef() = default;
  explicit ValueRef(DeviceValue* value) : value_(value) {
    if (value_) value_->retain();
  }
  ValueRef(const ValueRef& other) : ValueRef(other.value_) {}
  ValueRef(ValueRef&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  ValueRef& operator=(ValueRef other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~ValueRef() {
    if (value_) value_->release();
  }
  DeviceValue* get() const { return value_; }
  DeviceValue* operator->() const { return value_; }
  explicit operator bool() const { return value_ != nullptr; }

 private:
  DeviceValue* value_ = nullptr;
};

}  // namespace tpu::runtime
