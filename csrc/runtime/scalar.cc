// SPDX-License-Identifier: Apache-2.0
#include "runtime/scalar.h"

#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/device.h"

namespace tpu::runtime {

using hlo::DType;

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

namespace {

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

ScalarCache& scalar_cache() {
  static auto* cache = new ScalarCache;
  return *cache;
}

}  // namespace

ValueRef scalar_value(const Scalar& s, const hlo::Type* type, int device) {
  return scalar_cache().get(encode(s, type->dtype), type, device);
}

}  // namespace tpu::runtime
