// SPDX-License-Identifier: Apache-2.0
#include <c10/core/Device.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "aten/error.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace tpu::aten {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using runtime::Marker;

constexpr auto kType = c10::DeviceType::PrivateUse1;

Device device(int index) { return Device(kType, static_cast<DeviceIndex>(index)); }

int index_of(Device d) { return d.has_index() ? d.index() : runtime::current_device(); }

Stream stream(int index, int64_t id) { return Stream(Stream::UNSAFE, device(index), id); }

// An event of PyTorch is a Marker on the heap.
const Marker& marker(void* event) { return *static_cast<const Marker*>(event); }

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  Device exchangeDevice(Device d) const override {
    const Device before = getDevice();
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return device(runtime::current_device()); }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.type() == kType, "expected a tpu device, got ", d);
    guarded([&] {
      if (d.has_index()) runtime::set_current_device(d.index());
    });
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    try {
      if (d.has_index()) runtime::set_current_device(d.index());
    } catch (const tpu::Error&) {  // called from destructors
    }
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(runtime::device_count()); }
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability out;
    auto& types = out.capability_data.supported_scalar_types;
    out.capability_data.capability_bits = 0;
    types.has_Byte = types.has_Char = types.has_Short = types.has_Int = types.has_Long = 1;
    types.has_Half = types.has_Float = types.has_Double = types.has_BFloat16 = 1;
    types.has_ComplexFloat = types.has_ComplexDouble = types.has_Bool = 1;
    types.has_Float8_e5m2 = types.has_Float8_e4m3fn = 1;
    types.has_Float8_e5m2fnuz = types.has_Float8_e4m3fnuz = 1;
    types.has_UInt16 = types.has_UInt32 = types.has_UInt64 = 1;
    return out;
  }

  Stream getStream(Device d) const override {
    return guarded([&] { return stream(index_of(d), runtime::current_stream(index_of(d))); });
  }
  Stream getDefaultStream(Device d) const override { return stream(index_of(d), 0); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d); }
  Stream getNewStream(Device d, int = 0) const override {
    return guarded([&] {
      const int index = index_of(d);
      runtime::check_device(index);
      return stream(index, runtime::new_stream(index));
    });
  }
  Stream exchangeStream(Stream s) const override {
    return guarded([&] {
      const Stream before = getStream(s.device());
      runtime::set_current_stream(s.device_index(), s.id());
      return before;
    });
  }
  bool queryStream(const Stream& s) const override {
    return guarded([&] { return runtime::stream_idle(s.device_index(), s.id()); });
  }
  void synchronizeStream(const Stream& s) const override {
    guarded([&] { runtime::synchronize_stream(s.device_index(), s.id()); });
  }
  void synchronizeDevice(DeviceIndex index) const override {
    guarded([&] { runtime::synchronize_device(index_of(Device(kType, index))); });
  }

  // Always timed: the flag would save nothing.
  void record(void** event, const Stream& s, DeviceIndex, c10::EventFlag) const override {
    guarded([&] {
      if (!*event) *event = new Marker;
      static_cast<Marker*>(*event)->record(s.device_index(), s.id());
    });
  }
  void block(void* event, const Stream& s) const override {
    if (event) guarded([&] { marker(event).block(s.device_index(), s.id()); });
  }
  bool queryEvent(void* event) const override { return !event || marker(event).ready(); }
  void synchronizeEvent(void* event) const override {
    if (event) guarded([&] { marker(event).wait(); });
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Marker*>(event); }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    return guarded([&] { return marker(end).elapsed_since(marker(start)); });
  }
};

// Leaked: destructors that run at exit may still switch devices.
const c10::impl::DeviceGuardImplRegistrar registrar(kType, new GuardImpl);

}  // namespace
}  // namespace tpu::aten
