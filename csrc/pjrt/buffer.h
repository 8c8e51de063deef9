// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pjrt/event.h"
#include "pjrt_c_api.h"

namespace tpu::pjrt {

struct Device;

// Owns a PJRT_Buffer: an array on one device, perhaps still being computed. Destroying it frees
// the memory once pending uses are over, without waiting. Reading it may be done from any thread.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const PJRT_Api* api, PJRT_Buffer* handle) : api_(api), handle_(handle) {}
  Buffer(Buffer&& other) noexcept : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));  // what this held dies here, not with `other`
    std::swap(api_, taken.api_);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~Buffer() {
    if (handle_) destroy();
  }

  explicit operator bool() const { return handle_ != nullptr; }
  PJRT_Buffer* handle() const { return handle_; }
  PJRT_Buffer* release() { return std::exchange(handle_, nullptr); }

  size_t bytes() const;  // on the device, padding included
  PJRT_Buffer_Type type() const;
  std::vector<int64_t> dims() const;
  bool deleted() const;  // donated, or freed by free_memory()
  // Frees the device memory now; the buffer stays as a deleted one.
  void free_memory();

  // Copies to dense row-major host memory, without waiting; `dst` must live until the event.
  Event to_host(void* dst, size_t size) const;
  // As to_host, and waits; 0.1 us and no thread switch where the value lies in host memory.
  void read(void* dst, size_t size) const;
  // When the value is there; the event carries the error of the launch that made it.
  Event ready() const;
  // Never shares memory, even on the same device.
  Buffer copy_to(const Device& device) const;
  // Where the value lies, an address of the host's for the CPU plugin. Waits for the value.
  uintptr_t address() const;

 private:
  void destroy();
  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* handle_ = nullptr;
};

}  // namespace tpu::pjrt
