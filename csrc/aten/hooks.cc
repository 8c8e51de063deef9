// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "aten/error.h"
#include "aten/generator.h"
#include "aten/storage.h"
#include "runtime/device.h"

namespace tpu::aten {
namespace {

using c10::DeviceIndex;

// Page-aligned host memory, known by address. PJRT has no host allocator, so that nothing is
// locked; what "pinned" gives is that a transfer may read the memory while the program goes on.
class PinnedAllocator final : public at::HostAllocator {
 public:
  PinnedAllocator() {
    // A child may free what it inherits, while another thread of the parent held the lock.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;  // leaked: tensors outlive statics
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (bytes + page - 1) / page * page;
    void* memory = rounded < bytes ? nullptr : std::aligned_alloc(page, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, memory, "can't allocate ", bytes, " bytes of pinned memory");
    std::lock_guard lock(mutex_);
    blocks_.emplace(static_cast<const char*>(memory), rounded);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(static_cast<int64_t>(rounded));
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // Also true for a pointer inside a block: a tensor may start anywhere in its storage.
  bool owns(const void* pointer) {
    std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(static_cast<const char*>(pointer));
    if (after == blocks_.begin()) return false;
    const auto& [start, size] = *std::prev(after);
    return static_cast<const char*>(pointer) < start + size;
  }

  // A transfer that is under way keeps its source's storage itself.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}  // nothing is kept
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocations.reset_accumulated();
    stats_.allocated_bytes.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocations.reset_peak();
    stats_.allocated_bytes.reset_peak();
  }

 private:
  static void release(void* memory) {
    if (!memory) return;
    PinnedAllocator& self = instance();
    {
      std::lock_guard lock(self.mutex_);
      auto block = self.blocks_.find(static_cast<const char*>(memory));
      if (block != self.blocks_.end()) {
        self.stats_.allocations.decrease(1);
        self.stats_.allocated_bytes.decrease(static_cast<int64_t>(block->second));
        self.blocks_.erase(block);
      }
    }
    std::free(memory);
  }

  std::mutex mutex_;
  std::map<const char*, size_t> blocks_;  // start -> bytes
  at::HostStats stats_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {
    guarded([] { runtime::Runtime::get(); });
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return runtime::Runtime::available(); }
  bool hasPrimaryContext(DeviceIndex index) const override {
    return runtime::Runtime::opened() && !runtime::in_forked_child() && index < runtime::device_count();
  }

  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(runtime::device_count()); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(runtime::current_device()); }
  void setCurrentDevice(DeviceIndex index) const override {
    guarded([&] { runtime::set_current_device(index); });
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = getCurrentDevice();
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return data && PinnedAllocator::instance().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
  c10::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "memory of a tpu has no address from which a tensor could be made");
  }

  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return guarded([&]() -> const at::Generator& { return default_generator(index); });
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return guarded([&] {
      const DeviceIndex device = default_generator(index).device().index();  // checks it
      return at::make_generator<Generator>(device);
    });
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    guarded([&] { resize_storage(storage, bytes); });
  }
};

// Leaked, as PyTorch asks for both at any time until exit.
[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &PinnedAllocator::instance());
  return true;
}();

}  // namespace
}  // namespace tpu::aten
