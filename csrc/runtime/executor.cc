// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/capture.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/stream.h"

namespace tpu::runtime {
namespace {

using hlo::DType;

EagerMode initial_mode() {
  if (env::get_bool("TORCH_TPU_LAUNCH_BLOCKING")) return EagerMode::DeferNeverAndLaunchBlocking;
  if (env::get_bool("TORCH_TPU_DEFER_AND_FUSE")) return EagerMode::DeferAndFuse;
  return EagerMode::DeferNever;
}

std::atomic<EagerMode>& mode() {
  static std::atomic<EagerMode> value{initial_mode()};
  return value;
}

PJRT_Buffer_Type pjrt_type(DType t) {
  switch (t) {
    case DType::PRED: return PJRT_Buffer_Type_PRED;
    case DType::S8: return PJRT_Buffer_Type_S8;
    case DType::S16: return PJRT_Buffer_Type_S16;
    case DType::S32: return PJRT_Buffer_Type_S32;
    case DType::S64: return PJRT_Buffer_Type_S64;
    case DType::U8: return PJRT_Buffer_Type_U8;
    case DType::U16: return PJRT_Buffer_Type_U16;
    case DType::U32: return PJRT_Buffer_Type_U32;
    case DType::U64: return PJRT_Buffer_Type_U64;
    case DType::F16: return PJRT_Buffer_Type_F16;
    case DType::BF16: return PJRT_Buffer_Type_BF16;
    case DType::F32: return PJRT_Buffer_Type_F32;
    case DType::F64: return PJRT_Buffer_Type_F64;
    case DType::C64: return PJRT_Buffer_Type_C64;
    case DType::C128: return PJRT_Buffer_Type_C128;
    case DType::F8E4M3FN: return PJRT_Buffer_Type_F8E4M3FN;
    case DType::F8E5M2: return PJRT_Buffer_Type_F8E5M2;
    case DType::F8E4M3FNUZ: return PJRT_Buffer_Type_F8E4M3FNUZ;
    case DType::F8E5M2FNUZ: return PJRT_Buffer_Type_F8E5M2FNUZ;
    case DType::S4: return PJRT_Buffer_Type_S4;
    case DType::U4: return PJRT_Buffer_Type_U4;
  }
  fail(ErrorKind::Internal, "unknown dtype");
}

// The scalar as 16 bytes of `type` in host memory.
using Encoded = std::array<uint64_t, 2>;

template <class T>
Encoded pack(T value) {
  static_assert(sizeof(T) <= sizeof(Encoded));
  Encoded out{};
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

double as_double(const Scalar& s) {
  switch (s.kind) {
    case Scalar::Kind::Float:
    case Scalar::Kind::Complex: return s.re;
    case Scalar::Kind::Uint: return static_cast<double>(static_cast<uint64_t>(s.i));
    default: return static_cast<double>(s.i);
  }
}

int64_t as_int(const Scalar& s) {
  if (s.kind == Scalar::Kind::Float || s.kind == Scalar::Kind::Complex) {
    if (!(s.re > -9.3e18 && s.re < 9.3e18)) return INT64_MIN;
    return static_cast<int64_t>(s.re);
  }
  return s.i;
}

Encoded encode(const Scalar& s, DType t) {
  switch (t) {
    case DType::PRED:
      return pack<uint8_t>(s.kind == Scalar::Kind::Complex ? (s.re != 0 || s.im != 0) : as_double(s) != 0);
    case DType::S8: return pack(static_cast<int8_t>(as_int(s)));
    case DType::S16: return pack(static_cast<int16_t>(as_int(s)));
    case DType::S32: return pack(static_cast<int32_t>(as_int(s)));
    case DType::S64: return pack(as_int(s));
    case DType::U8: return pack(static_cast<uint8_t>(as_int(s)));
    case DType::U16: return pack(static_cast<uint16_t>(as_int(s)));
    case DType::U32: return pack(static_cast<uint32_t>(as_int(s)));
    case DType::U64: return pack(static_cast<uint64_t>(as_int(s)));
    case DType::F32: return pack(static_cast<float>(as_double(s)));
    case DType::F64: return pack(as_double(s));
    case DType::C64: {
      const float parts[2] = {static_cast<float>(as_double(s)), static_cast<float>(s.im)};
      Encoded out{};
      std::memcpy(out.data(), parts, sizeof parts);
      return out;
    }
    case DType::C128: {
      const double parts[2] = {as_double(s), s.im};
      Encoded out{};
      std::memcpy(out.data(), parts, sizeof parts);
      return out;
    }
    default: fail(ErrorKind::Internal, "a scalar operand of dtype ", hlo::short_name(t));
  }
}

// Device copies of recently used scalars, so that `x * 0.5` in a loop uploads once. Direct-mapped.
class ScalarCache {
 public:
  ValueRef get(const Encoded& bits, const hlo::Type* type, int device) {
    Entry& entry = entries_[slot(bits, type, device)];
    {
      std::lock_guard lock(mutex_);
      if (entry.value && entry.bits == bits && entry.value->type() == type && entry.value->device() == device) {
        return entry.value;
      }
    }
    // Not counted as the user's memory: a few bytes that stay.
    Runtime& runtime = Runtime::get();
    ValueRef value(new DeviceValue(
        type, device,
        runtime.client().from_host(bits.data(), pjrt_type(type->dtype), nullptr, 0, runtime.device(device)),
        /*counted=*/false));
    std::lock_guard lock(mutex_);
    entry.bits = bits;
    entry.value = value;
    return value;
  }

 private:
  struct Entry {
    Encoded bits{};
    ValueRef value;
  };
  static size_t slot(const Encoded& bits, const hlo::Type* type, int device) {
    Hash128 hash;
    hash.add(bits[0] ^ (bits[1] << 1));
    hash.add(reinterpret_cast<uintptr_t>(type) + static_cast<uintptr_t>(device));
    return hash.lo() % kSize;
  }
  static constexpr size_t kSize = 2048;
  std::mutex mutex_;
  std::array<Entry, kSize> entries_;
};

constexpr const char* kTraceEscaped =
    "the value of a tensor is needed while its function is being traced; values are known only when the program runs";

ScalarCache& scalar_cache() {
  static auto* cache = new ScalarCache;
  return *cache;
}

// Arrays whose usual length is small, without a heap allocation for it.
template <class T, size_t N>
class SmallArray {
 public:
  explicit SmallArray(size_t size) : data_(size <= N ? inline_ : new T[size]) {}
  ~SmallArray() {
    if (data_ != inline_) delete[] data_;
  }
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T inline_[N];
  T* data_;
};

}  // namespace

EagerMode eager_mode() { return mode().load(std::memory_order_relaxed); }
void set_eager_mode(EagerMode m) { mode().store(m, std::memory_order_relaxed); }

void launch(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
            std::span<ValueRef> results) {
  if (Capture* capture = Capture::current()) [[unlikely]] {
    capture->launch(plan, operands, scalars, results);
    return;
  }
  Runtime& runtime = Runtime::get();
  Program& program = plan.program();
  memory::reserve(device, plan.result_bytes + program.temporary_bytes);

  const size_t count = plan.params.size();
  SmallArray<PJRT_Buffer*, 16> args(count);
  SmallArray<ValueRef, 8> held(scalars.empty() ? 0 : count);
  for (size_t i = 0; i < count; ++i) {
    const Param& param = plan.params[i];
    if (param.from == Param::From::Operand) [[likely]] {
      args[i] = operands[static_cast<size_t>(param.index)].value->buffer().handle();
      TPU_CHECK(args[i] != nullptr, plan.name, ": ", kTraceEscaped);
      TPU_CHECK(operands[static_cast<size_t>(param.index)].value->type() == param.type, plan.name,
                ": another thread changed a tensor's shape during the call");
    } else if (param.from == Param::From::Constant) {
      args[i] = plan.constants[static_cast<size_t>(param.index)]->buffer().handle();
    } else {
      const Encoded bits = encode(scalars[static_cast<size_t>(param.index)], param.type->dtype);
      held[i] = scalar_cache().get(bits, param.type, device);
      args[i] = held[i]->buffer().handle();
    }
  }
  // An aliased parameter is consumed unless somebody else still holds its value.
  SmallArray<int64_t, 16> keep(plan.donated.size());
  SmallArray<Slot*, 16> consumed(plan.donated.size());
  size_t kept = 0, taken = 0;
  for (int i : plan.donated) {
    const Operand& operand = operands[static_cast<size_t>(plan.params[static_cast<size_t>(i)].index)];
    if (operand.slot && operand.slot->consume(operand.value)) {
      consumed[taken++] = operand.slot;
    } else {
      keep[kept++] = i;
    }
  }

  SmallArray<PJRT_Buffer*, 16> outs(results.size());
  pjrt::Event done;
  try {
    before_launch(device);
    program.executable.execute(args.data(), count, outs.data(), runtime.device(device), keep.data(), kept, &done);
  } catch (...) {
    for (size_t i = 0; i < taken; ++i) consumed[i]->keep();
    throw;
  }
  const PJRT_Api* api = runtime.client().api();
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = ValueRef(new DeviceValue(plan.results[i], device, pjrt::Buffer(api, outs[i])));
  }
  metrics::count_launch();
  after_launch(device, std::move(done));
}

ValueRef upload(const void* data, const hlo::Type* type, int device, pjrt::Event* done) {
  Runtime& runtime = Runtime::get();
  memory::reserve(device, type->bytes());
  using HostUse = pjrt::Client::HostUse;
  pjrt::Buffer buffer =
      runtime.client().from_host(data, pjrt_type(type->dtype), type->dims.data(), type->dims.size(),
                                 runtime.device(device), done ? HostUse::UntilDone : HostUse::DuringCall, done);
  return ValueRef(new DeviceValue(type, device, std::move(buffer)));
}

void download(const ValueRef& value, void* data) {
  const size_t bytes = static_cast<size_t>(value->type()->bytes());
  if (bytes == 0) return;
  TPU_CHECK(value->ready_to_use(), kTraceEscaped);
  value->buffer().read(data, bytes);
}

ValueRef transfer(const ValueRef& value, int device) {
  if (value->device() == device) return value;
  TPU_CHECK(value->ready_to_use(), kTraceEscaped);
  memory::reserve(device, value->type()->bytes());
  return ValueRef(new DeviceValue(value->type(), device, value->buffer().copy_to(Runtime::get().device(device))));
}

}  // namespace tpu::runtime
