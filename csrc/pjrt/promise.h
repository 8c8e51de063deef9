// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "pjrt/buffer.h"
#include "pjrt/client.h"

namespace tpu::pjrt {

// A buffer whose contents come from the host later. Programs may be launched on it at once: they wait in the plugin, as
// for any other launch. Destroyed before it was kept, it fails the buffer. Not thread-safe; the buffer is.
class Promise {
 public:
  Promise() = default;
  // A dense row-major array on `device`.
  Promise(Client& client, PJRT_Buffer_Type type, const int64_t* dims, size_t rank, const Device& device);
  Promise(Promise&& other) noexcept;
  Promise& operator=(Promise&& other) noexcept;
  ~Promise();

  explicit operator bool() const { return manager_ != nullptr; }
  // The buffer; to be called once.
  Buffer buffer();
  // Copies `size` bytes, all of the array, and waits until `data` is read.
  void keep(const void* data, size_t size);
  // Whoever waits for the buffer gets this error.
  void fail(const std::string& message);

 private:
  void destroy();
  const PJRT_Api* api_ = nullptr;
  PJRT_AsyncHostToDeviceTransferManager* manager_ = nullptr;
};

}  // namespace tpu::pjrt
