// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "runtime/device.h"
#include "runtime/value.h"

namespace tpu::runtime {

// The current value of one storage. The value may be read from any thread; it is swapped as a
// whole, under the slot's lock. A slot without a value reads as zeros of its type.
class Slot {
 public:
  Slot(int device, const hlo::Type* type) : device_(device), type_(type) {}

  int device() const { return device_; }
  // Type of the value, or the one that a value would have.
  const hlo::Type* type() const { return type_.load(std::memory_order_acquire); }
  // The value, null when nothing was written yet.
  // Waits while a launch that consumes the value is under way in another thread; in a forked child
  // there is no such thread any more.
  ValueRef value() const {
    for (;;) {
      {
        Lock lock(busy_);
        if (!consumed_ || in_forked_child()) return value_;
      }
      std::this_thread::yield();
    }
  }
  // Claims `value` for a launch that reuses its memory: true when it is still the slot's and nobody
  // but the slot and the caller holds it. Readers then wait for set() or keep().
  bool consume(const ValueRef& value) {
    Lock lock(busy_);
    if (consumed_ || value_.get() != value.get() || value->owners() > 2) return false;
    consumed_ = true;
    return true;
  }
  // The launch didn't take place.
  void keep() {
    Lock lock(busy_);
    consumed_ = false;
  }
  bool written() const { return written_.load(std::memory_order_acquire); }
  void set(ValueRef value) {
    Lock lock(busy_);
    type_.store(value->type(), std::memory_order_release);
    written_.store(true, std::memory_order_release);
    consumed_ = false;
    std::swap(value_, value);  // the old one is freed after the lock
  }
  // Forgets the value; the slot then reads as zeros of `type`.
  void reset(const hlo::Type* type) {
    ValueRef old;
    Lock lock(busy_);
    type_.store(type, std::memory_order_release);
    written_.store(false, std::memory_order_release);
    consumed_ = false;
    std::swap(value_, old);
  }
  // Address in the reserved range, so that the storage's pointer is unique.
  uintptr_t address = 0;
  size_t reserved = 0;
  // The list of all live slots, kept by whoever gives out addresses.
  Slot* next = nullptr;
  Slot* previous = nullptr;
  // The slot that this one took the place of when the storage grew. Other threads may be in the middle of a call that
  // knows it, so it lives as long as the storage; each growth at least doubles the range, so there are few.
  Slot* outgrown = nullptr;

 private:
  struct Lock {
    explicit Lock(std::atomic_flag& flag) : flag_(flag) {
      while (flag_.test_and_set(std::memory_order_acquire)) {
      }
    }
    ~Lock() { flag_.clear(std::memory_order_release); }
    std::atomic_flag& flag_;
  };
  const int device_;
  mutable std::atomic_flag busy_;
  bool consumed_ = false;
  std::atomic<bool> written_{false};
  std::atomic<const hlo::Type*> type_;
  ValueRef value_;
};

}  // namespace tpu::runtime
