// SPDX-License-Identifier: Apache-2.0
#include "aten/storage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "aten/copy.h"
#include "aten/error.h"
#include "aten/memory_stats.h"
#include "base/error.h"
#include "runtime/device.h"
#include "runtime/memory.h"

namespace tpu::aten {
namespace {

using runtime::Slot;

// Hands out address ranges of inaccessible memory, by power-of-two size class.
class AddressSpace {
 public:
  uintptr_t take(size_t bytes, Slot* slot) {
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 64));
    const auto bucket = static_cast<size_t>(std::countr_zero(size));
    slot->reserved = size;
    std::lock_guard lock(mutex_);
    slot->next = live_;
    slot->previous = nullptr;
    if (live_) live_->previous = slot;
    live_ = slot;
    if (!free_[bucket].empty()) {
      const uintptr_t address = free_[bucket].back();
      free_[bucket].pop_back();
      return address;
    }
    if (next_ == 0) reserve();
    const uintptr_t address = next_;
    if (size > end_ - address)
      fail(ErrorKind::OutOfMemory, "tpu out of memory: a tensor of ", bytes, " bytes is larger than any device");
    next_ += size;
    return address;
  }
  void give_back(Slot* slot) {
    std::lock_guard lock(mutex_);
    (slot->previous ? slot->previous->next : live_) = slot->next;
    if (slot->next) slot->next->previous = slot->previous;
    if (slot->address) free_[static_cast<size_t>(std::countr_zero(slot->reserved))].push_back(slot->address);
  }
  // The live slot that starts at an address; null when none does. A walk over all of them.
  Slot* find(uintptr_t address) {
    std::lock_guard lock(mutex_);
    for (Slot* slot = live_; slot; slot = slot->next) {
      if (slot->address == address) return slot;
    }
    return nullptr;
  }

 private:
  void reserve() {
    for (size_t size = size_t{1} << 45; size >= size_t{1} << 36; size >>= 1) {
      void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) continue;
      next_ = reinterpret_cast<uintptr_t>(base);
      end_ = next_ + size;
      return;
    }
    fail(ErrorKind::OutOfMemory, "cannot reserve address space for tensors");
  }
  std::mutex mutex_;
  Slot* live_ = nullptr;
  uintptr_t next_ = 0, end_ = 0;
  std::array<std::vector<uintptr_t>, 64> free_;
};

AddressSpace& addresses() {
  static auto* space = new AddressSpace;
  return *space;
}

void delete_slot(void* context) {
  for (auto* slot = static_cast<Slot*>(context); slot;) {
    addresses().give_back(slot);
    delete std::exchange(slot, slot->outgrown);
  }
}

c10::DataPtr make_data_ptr(size_t nbytes, int device, const hlo::Type* type) {
  auto slot = std::make_unique<Slot>(device, type);
  slot->address = addresses().take(nbytes, slot.get());
  void* pointer = reinterpret_cast<void*>(slot->address);
  return {pointer, slot.release(), &delete_slot,
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
}

const hlo::Type* bytes_type(size_t nbytes) { return runtime::intern({hlo::DType::U8, {static_cast<int64_t>(nbytes)}}); }

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    return guarded([&] {
      runtime::Runtime::get();
      return make_data_ptr(n, runtime::current_device(), bytes_type(n));
    });
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "memory of the tpu device can't be copied by address");
  }
  bool initialized() override { return runtime::Runtime::opened(); }
  // Freed memory goes straight back to PJRT; the CPU plugin's is the C library's heap.
  void emptyCache(c10::MempoolId_t = {0, 0}) override { runtime::memory::release_freed_pages(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // PJRT keeps buffers of pending launches
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return device_stats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { runtime::memory::reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { runtime::memory::reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const int64_t limit = runtime::memory::limit(device);
    const int64_t used = runtime::memory::stats(device).current;
    return {static_cast<size_t>(std::max<int64_t>(limit - used, 0)), static_cast<size_t>(limit)};
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* instance = new Allocator;
  return instance;
}

c10::Storage make_storage(size_t nbytes, int device, const hlo::Type* type) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                            make_data_ptr(nbytes, device, type), allocator(),
                                                            /*resizable=*/true));
}

c10::Storage make_storage(int device, runtime::ValueRef value) {
  c10::Storage storage = make_storage(static_cast<size_t>(value->type()->bytes()), device, value->type());
  slot_of(*storage.unsafeGetStorageImpl()).set(std::move(value));
  return storage;
}

Slot& slot_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  if (pointer.get_deleter() == &delete_slot) [[likely]]
    return *static_cast<Slot*>(pointer.get_context());
  // PyTorch wraps our addresses when it saves a storage or takes part in DLPack.
  Slot* slot = addresses().find(reinterpret_cast<uintptr_t>(pointer.get()));
  TORCH_CHECK(slot != nullptr, "expected a storage that the tpu device allocated; a view that doesn't start where its ",
              "storage does can't be exchanged by address: clone() it first");
  return *slot;
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl.resizable(), "Trying to resize storage that is not resizable");
  Slot& old = slot_of(impl);
  if (nbytes == impl.nbytes()) return;
  const bool kept = old.written() && impl.nbytes() > 0 && nbytes > 0;
  const bool fits = nbytes <= old.reserved;
  c10::DataPtr fresh;
  if (!fits) fresh = make_data_ptr(nbytes, old.device(), bytes_type(nbytes));
  Slot& slot = fits ? old : *static_cast<Slot*>(fresh.get_context());
  if (kept)
    slot.set(resized_value(old, nbytes));
  else
    slot.reset(bytes_type(nbytes));
  if (!fits) {
    c10::DataPtr replaced = impl.set_data_ptr(std::move(fresh));
    if (replaced.get_deleter() == &delete_slot) {
      replaced.release_context();
      slot.outgrown = &old;
      old.reset(old.type());
    }
  }
  impl.set_nbytes(nbytes);
}

hlo::Dims physical_dims(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  hlo::Dims dims;
  for (size_t d : order) dims.push_back(sizes[d]);
  return dims;
}

hlo::DType dtype_of(c10::ScalarType type) {
  using enum hlo::DType;
  switch (type) {
    case c10::ScalarType::Bool: return PRED;
    case c10::ScalarType::Char: return S8;
    case c10::ScalarType::Short: return S16;
    case c10::ScalarType::Int: return S32;
    case c10::ScalarType::Long: return S64;
    case c10::ScalarType::Byte: return U8;
    case c10::ScalarType::UInt16: return U16;
    case c10::ScalarType::UInt32: return U32;
    case c10::ScalarType::UInt64: return U64;
    case c10::ScalarType::Half: return F16;
    case c10::ScalarType::BFloat16: return BF16;
    case c10::ScalarType::Float: return F32;
    case c10::ScalarType::Double: return F64;
    case c10::ScalarType::ComplexFloat: return C64;
    case c10::ScalarType::ComplexDouble: return C128;
    case c10::ScalarType::Float8_e4m3fn: return F8E4M3FN;
    case c10::ScalarType::Float8_e5m2: return F8E5M2;
    case c10::ScalarType::Float8_e4m3fnuz: return F8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz: return F8E5M2FNUZ;
    default: TORCH_CHECK_TYPE(false, "the tpu device has no tensors of dtype ", c10::toString(type));
  }
}

c10::ScalarType scalar_type_of(hlo::DType type) {
  using enum hlo::DType;
  switch (type) {
    case PRED: return c10::ScalarType::Bool;
    case S8: return c10::ScalarType::Char;
    case S16: return c10::ScalarType::Short;
    case S32: return c10::ScalarType::Int;
    case S64: return c10::ScalarType::Long;
    case U8: return c10::ScalarType::Byte;
    case U16: return c10::ScalarType::UInt16;
    case U32: return c10::ScalarType::UInt32;
    case U64: return c10::ScalarType::UInt64;
    case F16: return c10::ScalarType::Half;
    case BF16: return c10::ScalarType::BFloat16;
    case F32: return c10::ScalarType::Float;
    case F64: return c10::ScalarType::Double;
    case C64: return c10::ScalarType::ComplexFloat;
    case C128: return c10::ScalarType::ComplexDouble;
    case F8E4M3FN: return c10::ScalarType::Float8_e4m3fn;
    case F8E5M2: return c10::ScalarType::Float8_e5m2;
    case F8E4M3FNUZ: return c10::ScalarType::Float8_e4m3fnuz;
    case F8E5M2FNUZ: return c10::ScalarType::Float8_e5m2fnuz;
    default: TORCH_CHECK_TYPE(false, "no PyTorch dtype for ", hlo::short_name(type));
  }
}

}  // namespace tpu::aten
