// SPDX-License-Identifier: Apache-2.0
#include "pjrt/promise.h"

#include "pjrt/call.h"

namespace tpu::pjrt {

Promise::Promise(Client& client, PJRT_Buffer_Type type, const int64_t* dims, size_t rank, const Device& device)
    : api_(client.api()) {
  auto memory = args<PJRT_Device_DefaultMemory_Args>();
  memory.device = device.handle;
  call(api_, &PJRT_Api::PJRT_Device_DefaultMemory, memory, "memory of a device");
  auto shape = args<PJRT_ShapeSpec>();
  shape.dims = dims;
  shape.num_dims = rank;
  shape.element_type = type;
  auto a = args<PJRT_Client_CreateBuffersForAsyncHostToDevice_Args>();
  a.client = client.handle();
  a.shape_specs = &shape;
  a.num_shape_specs = 1;
  a.memory = memory.memory;
  call(api_, &PJRT_Api::PJRT_Client_CreateBuffersForAsyncHostToDevice, a, "buffer to be filled later");
  manager_ = a.transfer_manager;
}

Promise::Promise(Promise&& other) noexcept : api_(other.api_), manager_(std::exchange(other.manager_, nullptr)) {}

Promise& Promise::operator=(Promise&& other) noexcept {
  Promise taken(std::move(other));
  std::swap(api_, taken.api_);
  std::swap(manager_, taken.manager_);
  return *this;
}

Promise::~Promise() {
  if (!manager_) return;
  try {
    fail("what was to fill a buffer has been given up");
  } catch (const Error&) {
  }
}

void Promise::destroy() {
  auto a = args<PJRT_AsyncHostToDeviceTransferManager_Destroy_Args>();
  a.transfer_manager = std::exchange(manager_, nullptr);
  if (PJRT_Error* error = api_->PJRT_AsyncHostToDeviceTransferManager_Destroy(&a)) take_text(api_, error);
}

Buffer Promise::buffer() {
  auto a = args<PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args>();
  a.transfer_manager = manager_;
  call(api_, &PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, a, "buffer to be filled later");
  return Buffer(api_, a.buffer_out);
}

void Promise::keep(const void* data, size_t size) {
  if (exiting.load(std::memory_order_relaxed)) return;
  auto a = args<PJRT_AsyncHostToDeviceTransferManager_TransferData_Args>();
  a.transfer_manager = manager_;
  a.data = data;
  a.transfer_size = static_cast<int64_t>(size);
  a.is_last_transfer = true;
  call(api_, &PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_TransferData, a, "copy from the host");
  const Event done(api_, a.done_with_h2d_transfer);
  done.await();
  destroy();
}

void Promise::fail(const std::string& message) {
  if (exiting.load(std::memory_order_relaxed)) return;
  auto a = args<PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args>();
  a.transfer_manager = manager_;
  a.error_code = PJRT_Error_Code_INTERNAL;
  a.error_message = message.data();
  a.error_message_size = message.size();
  call(api_, &PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_SetBufferError, a, "failure of a buffer");
  destroy();
}

}  // namespace tpu::pjrt
