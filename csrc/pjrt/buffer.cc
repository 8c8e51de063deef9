// SPDX-License-Identifier: Apache-2.0
#include "pjrt/buffer.h"

#include <array>
#include <cstring>

#include "pjrt/call.h"
#include "pjrt/client.h"

namespace tpu::pjrt {

void Buffer::destroy() {
  if (exiting.load(std::memory_order_relaxed)) return;
  auto a = args<PJRT_Buffer_Destroy_Args>();
  a.buffer = handle_;
  if (PJRT_Error* error = api_->PJRT_Buffer_Destroy(&a)) take_text(api_, error);
  handle_ = nullptr;
}

size_t Buffer::bytes() const {
  auto a = args<PJRT_Buffer_OnDeviceSizeInBytes_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_OnDeviceSizeInBytes, a, "buffer size");
  return a.on_device_size_in_bytes;
}

PJRT_Buffer_Type Buffer::type() const {
  auto a = args<PJRT_Buffer_ElementType_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_ElementType, a, "buffer type");
  return a.type;
}

std::vector<int64_t> Buffer::dims() const {
  auto a = args<PJRT_Buffer_Dimensions_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_Dimensions, a, "buffer dimensions");
  return {a.dims, a.dims + a.num_dims};
}

bool Buffer::deleted() const {
  auto a = args<PJRT_Buffer_IsDeleted_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_IsDeleted, a, "buffer state");
  return a.is_deleted;
}

void Buffer::free_memory() {
  auto a = args<PJRT_Buffer_Delete_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_Delete, a, "free of a buffer");
}

Event Buffer::to_host(void* dst, size_t size) const {
  auto shape = args<PJRT_Buffer_Dimensions_Args>();
  shape.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_Dimensions, shape, "copy to the host");
  // The default is the device's layout, which on a TPU need not be row-major.
  constexpr size_t kMaxRank = 128;
  std::array<int64_t, kMaxRank> minor_to_major;
  TPU_CHECK(shape.num_dims <= kMaxRank, "copy to the host: more than ", kMaxRank, " dimensions");
  for (size_t i = 0; i < shape.num_dims; ++i) minor_to_major[i] = static_cast<int64_t>(shape.num_dims - 1 - i);
  auto layout = args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = sizeof layout.tiled;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = shape.num_dims;

  auto a = args<PJRT_Buffer_ToHostBuffer_Args>();
  a.src = handle_;
  a.host_layout = &layout;
  a.dst = dst;
  a.dst_size = size;
  call(api_, &PJRT_Api::PJRT_Buffer_ToHostBuffer, a, "copy to the host");
  return Event(api_, a.event);
}

void Buffer::read(void* dst, size_t size) const {
  auto where = args<PJRT_Buffer_IsOnCpu_Args>();
  where.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_IsOnCpu, where, "copy to the host");
  // Sizes differ for the types that the host holds packed.
  if (!where.is_on_cpu || size != bytes()) return to_host(dst, size).await();
  ready().await();
  if (size) std::memcpy(dst, reinterpret_cast<const void*>(address()), size);
}

Event Buffer::ready() const {
  auto a = args<PJRT_Buffer_ReadyEvent_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_ReadyEvent, a, "buffer");
  return Event(api_, a.event);
}

Buffer Buffer::copy_to(const Device& device) const {
  auto a = args<PJRT_Buffer_CopyToDevice_Args>();
  a.buffer = handle_;
  a.dst_device = device.handle;
  call(api_, &PJRT_Api::PJRT_Buffer_CopyToDevice, a, "copy between devices");
  return Buffer(api_, a.dst_buffer);
}

uintptr_t Buffer::address() const {
  auto a = args<PJRT_Buffer_UnsafePointer_Args>();
  a.buffer = handle_;
  call(api_, &PJRT_Api::PJRT_Buffer_UnsafePointer, a, "buffer address");
  return a.buffer_pointer;
}

}  // namespace tpu::pjrt
