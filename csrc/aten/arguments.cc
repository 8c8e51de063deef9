// SPDX-License-Identifier: Apache-2.0
// The walk over a call's arguments: what is part of the plan's key, what is an operand.
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <bit>
#include <vector>

#include "aten/copy.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "aten/target.h"
#include "runtime/device.h"

namespace tpu::aten {
namespace {

using lowering::Kind;
using runtime::Scalar;

constexpr uint64_t kNone = 2, kHostScalar = 4, kView = 1, kIdentity = 0;  // tags in a key's low bits

bool is_value_kind(Kind k) { return k == Kind::Value || k == Kind::OptValue || k == Kind::Scale; }

uint64_t bits_of(double d) { return std::bit_cast<uint64_t>(d); }

Scalar to_scalar(const c10::Scalar& s) {
  if (s.isComplex()) {
    const auto c = s.toComplexDouble();
    return {Scalar::Kind::Complex, 0, c.real(), c.imag()};
  }
  if (s.isFloatingPoint()) return {Scalar::Kind::Float, 0, s.toDouble(), 0};
  if (s.isBoolean()) return {Scalar::Kind::Bool, s.toBool() ? 1 : 0, 0, 0};
  if (s.type() == c10::ScalarType::UInt64) return {Scalar::Kind::Uint, static_cast<int64_t>(s.toUInt64()), 0, 0};
  return {Scalar::Kind::Int, s.toLong(), 0, 0};
}

void push_bytes(Call& call, std::string_view bytes) {
  call.key.push_back(bytes.size());
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    call.key.push_back(word);
  }
}

// Tensors on one storage become one parameter: which ones share is part of the key.
void key_sharing(Call& call) {
  constexpr size_t kFew = 16;
  const auto push = [&](size_t first, size_t again) { call.key.push_back(~((first << 32) | again)); };
  const auto slot = [&](size_t i) { return call.tensors[i].slot; };
  const size_t n = call.tensors.size();
  if (n > kFew) {
    // A table of positions plus one, at most half full; a slot goes to the next free place.
    const int bits = std::bit_width(2 * n);
    std::vector<uint32_t> table(size_t{1} << bits, 0);
    for (size_t i = 0; i < n; ++i) {
      if (!slot(i)) continue;
      size_t at = (reinterpret_cast<uintptr_t>(slot(i)) * 0x9E3779B97F4A7C15ull) >> (64 - bits);
      while (table[at] != 0 && slot(table[at] - 1) != slot(i)) at = (at + 1) & (table.size() - 1);
      if (table[at] != 0)
        push(table[at] - 1, i);
      else
        table[at] = static_cast<uint32_t>(i + 1);
    }
    return;
  }
  for (size_t i = 1; i < n; ++i) {
    for (size_t j = 0; j < i && slot(j); ++j) {
      if (slot(j) != slot(i)) continue;
      push(j, i);
      break;
    }
  }
}

// The one device of the call's tensors.
void look(const at::Tensor& t, Call& call) {
  if (!t.defined() || t.device().type() != c10::DeviceType::PrivateUse1) return;
  const int device = t.device().index();
  if (call.device < 0) {
    call.device = device;
  } else if (call.device != device) {
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, tpu:", call.device,
                " and tpu:", device, "!");
  }
}

// torch.set_float32_matmul_precision. PyTorch refuses to tell when the settings of its own backends
// contradict each other; they don't concern this device.
hlo::Precision matmul_precision() {
  try {
    switch (at::globalContext().float32MatmulPrecision()) {
      case at::Float32MatmulPrecision::MEDIUM: return hlo::Precision::DEFAULT;
      case at::Float32MatmulPrecision::HIGH: return hlo::Precision::HIGH;
      case at::Float32MatmulPrecision::HIGHEST: break;
    }
  } catch (const c10::Error&) {
  }
  return hlo::Precision::HIGHEST;
}

}  // namespace

void OpKernel::find_device(torch::jit::Stack* stack, Call& call) const {
  const size_t n = args_.size();
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& value = (*stack)[stack->size() - n + i];
    switch (args_[i].form) {
      case Form::Tensor:
        if (value.isTensor()) look(value.toTensor(), call);
        break;
      case Form::TensorList:
        if (value.isTensorList()) {
          for (const c10::IValue& t : value.toListRef()) look(t.toTensor(), call);
        }
        break;
      case Form::OptTensorList:
        if (value.isList()) {
          for (const c10::IValue& t : value.toListRef()) {
            if (t.isTensor()) look(t.toTensor(), call);
          }
        }
        break;
      default: break;
    }
  }
  if (call.device < 0) call.device = runtime::current_device();
}

void OpKernel::parse_tensor(const at::Tensor& tensor, const ArgSpec& spec, Call& call) const {
  TensorArg arg;
  if (!tensor.defined()) {
    call.key.push_back(kNone);
    call.tensors.push_back(arg);
    return;
  }
  arg.tensor = &tensor;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_privateuseone()) [[unlikely]] {
    if (impl->dim() == 0 && def_.options.host_scalars && impl->device_type() == c10::DeviceType::CPU && !spec.written) {
      arg.scalar = static_cast<int>(call.scalars.size());
      call.scalars.push_back(to_scalar(tensor.item()));
      call.key.push_back(kHostScalar | (static_cast<uint64_t>(tensor.scalar_type()) << 8) |
                         (static_cast<uint64_t>(impl->is_wrapped_number()) << 16));
      call.tensors.push_back(arg);
      return;
    }
    TORCH_CHECK(impl->device_type() == c10::DeviceType::CPU && def_.options.host_tensors && !spec.written,
                "Expected all tensors to be on the same device, but found at least two devices, tpu:", call.device,
                " and ", tensor.device(), "! (in ", name_, ")");
    call.uploaded.push_front(to_device(tensor, call.device));
    if (impl->is_wrapped_number()) call.uploaded.front().unsafeGetTensorImpl()->set_wrapped_number(true);
    parse_tensor(call.uploaded.front(), spec, call);
    return;
  }
  arg.slot = &slot_of(*impl->unsafe_storage().unsafeGetStorageImpl());
  arg.type = arg.slot->type();
  const c10::IntArrayRef sizes = impl->sizes();
  const hlo::DType dtype = dtype_of(impl->dtype().toScalarType());
  const bool plain = !impl->is_conj() && !impl->is_neg();
  const bool whole = impl->is_contiguous() && impl->storage_offset() == 0 &&
                     impl->numel() * hlo::byte_size(dtype) == arg.type->bytes();
  if (whole && plain && dtype == arg.type->dtype && sizes == c10::IntArrayRef(arg.type->dims)) [[likely]] {
    arg.identity = true;
    const bool weak = impl->is_wrapped_number();
    call.key.push_back(reinterpret_cast<uintptr_t>(arg.type) | kIdentity | (weak ? 1ull << 63 : 0));
    call.tensors.push_back(arg);
    return;
  }
  const int width = hlo::byte_size(dtype);
  if (!whole) {
    lowering::Digits digits;
    const c10::IntArrayRef strides = impl->strides();
    arg.access = lowering::classify(arg.type->bytes() / width, {sizes.data(), sizes.size()},
                                    {strides.data(), strides.size()}, impl->storage_offset(), digits);
    arg.scalar = static_cast<int>(call.scalars.size());
    arg.digits = digits.count;
    for (int i = 0; i < digits.count; ++i) call.scalars.push_back({Scalar::Kind::Int, digits.values[i], 0, 0});
  }
  call.key.push_back(reinterpret_cast<uintptr_t>(arg.type) | kView);
  call.key.push_back(static_cast<uint64_t>(sizes.size()) | (static_cast<uint64_t>(dtype) << 8) |
                     (static_cast<uint64_t>(arg.access) << 16) | (static_cast<uint64_t>(impl->is_conj()) << 24) |
                     (static_cast<uint64_t>(impl->is_neg()) << 25) |
                     (static_cast<uint64_t>(impl->is_wrapped_number()) << 26));
  for (int64_t s : sizes) call.key.push_back(static_cast<uint64_t>(s));
  if (!whole) {
    for (int64_t s : impl->strides()) call.key.push_back(static_cast<uint64_t>(s));
  }
  call.tensors.push_back(arg);
}

void OpKernel::parse_static(const c10::IValue& value, Kind kind, Call& call) const {
  if (value.isNone()) {
    call.key.push_back(kNone);
    return;
  }
  if (value.isInt()) {
    call.key.push_back(8);
    call.key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    call.key.push_back(16 + value.toBool());
  } else if (value.isDouble()) {
    call.key.push_back(24);
    call.key.push_back(bits_of(value.toDouble()));
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    call.key.push_back(32 | (list.size() << 8));
    for (int64_t i : list) call.key.push_back(static_cast<uint64_t>(i));
  } else if (value.isDoubleList()) {
    const auto list = value.toDoubleVector();
    call.key.push_back(40 | (list.size() << 8));
    for (double d : list) call.key.push_back(bits_of(d));
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    call.key.push_back(48 | (list.size() << 8));
    for (bool b : list) call.key.push_back(b);
  } else if (value.isDevice()) {
    call.key.push_back(72 | (static_cast<uint64_t>(value.toDevice().type()) << 8) |
                       (static_cast<uint64_t>(static_cast<uint8_t>(value.toDevice().index())) << 16));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    call.key.push_back(80 | (list.size() << 8));
    for (const c10::IValue& element : list) parse_static(element, kind, call);
  } else if (value.isString()) {
    call.key.push_back(56);
    push_bytes(call, value.toStringRef());
  } else if (value.isScalar()) {
    const Scalar s = to_scalar(value.toScalar());
    call.key.push_back(64 + static_cast<uint64_t>(s.kind));
    call.key.push_back(static_cast<uint64_t>(s.i));
    call.key.push_back(bits_of(s.re));
    call.key.push_back(bits_of(s.im));
  } else {
    fail(ErrorKind::Internal, name_, ": an argument of kind ", lowering::kind_name(kind), " can't be ",
         value.tagKind());
  }
}

// What a plan depends on beside the arguments.
void OpKernel::parse_surroundings(Call& call) const {
  call.default_dtype = at::get_default_dtype_as_scalartype();
  if (call.default_dtype != c10::ScalarType::Float) call.key.push_back(static_cast<uint64_t>(call.default_dtype) + 1);
  if (const lowering::Target* other = scoped_target()) [[unlikely]]
    call.key.push_back(reinterpret_cast<uintptr_t>(other));
  if (def_.options.products) {
    call.precision = matmul_precision();
    call.key.push_back(static_cast<uint64_t>(call.precision));
  }
  if (body_) {
    call.random = 0;
    call.scalars.resize(2);
  }
}

void OpKernel::parse_list(c10::ArrayRef<at::Tensor> tensors, Call& call) const {
  call.tensors.reserve(tensors.size());
  call.key.reserve(tensors.size() + 16);
  for (const at::Tensor& t : tensors) look(t, call);
  if (call.device < 0) call.device = runtime::current_device();
  parse_surroundings(call);
  call.key.push_back(tensors.size());
  for (const at::Tensor& t : tensors) parse_tensor(t, args_[0], call);
  key_sharing(call);
}

void OpKernel::parse(torch::jit::Stack* stack, Call& call) const {
  find_device(stack, call);
  parse_surroundings(call);
  const size_t n = args_.size();
  static const at::Tensor undefined;
  for (size_t i = 0; i < n; ++i) {
    const ArgSpec& spec = args_[i];
    const c10::IValue& value = (*stack)[stack->size() - n + i];
    switch (spec.form) {
      case Form::Tensor:
        if (spec.kind == Kind::Unused && !spec.written) break;
        parse_tensor(value.isTensor() ? value.toTensor() : undefined, spec, call);
        break;
      case Form::TensorList: {
        if (spec.kind == Kind::Unused && !spec.written) break;
        const auto list = value.toListRef();
        call.key.push_back(list.size());
        for (const c10::IValue& t : list) parse_tensor(t.toTensor(), spec, call);
        break;
      }
      case Form::OptTensorList: {
        const auto list = value.toListRef();
        call.key.push_back(list.size());
        for (const c10::IValue& t : list) parse_tensor(t.isTensor() ? t.toTensor() : undefined, spec, call);
        break;
      }
      case Form::ScalarList: {
        if (spec.kind != Kind::Values) {
          parse_static(value, spec.kind, call);
          break;
        }
        const auto list = value.toListRef();
        call.key.push_back(list.size());
        for (const c10::IValue& s : list) {
          call.scalars.push_back(to_scalar(s.toScalar()));
          call.key.push_back(static_cast<uint64_t>(call.scalars.back().kind));
        }
        break;
      }
      default:
        if (spec.kind == Kind::Unused) break;
        if (spec.kind == Kind::Random) {
          if (!value.isNone()) call.generator = value.toGenerator();
          call.random = static_cast<int>(call.scalars.size());
          call.scalars.push_back({Scalar::Kind::Uint, 0, 0, 0});
          call.scalars.push_back({Scalar::Kind::Uint, 0, 0, 0});
        } else if (is_value_kind(spec.kind)) {
          if (value.isNone()) {
            call.key.push_back(kNone);
            break;
          }
          const Scalar s = to_scalar(value.toScalar());
          const uint64_t kind = static_cast<uint64_t>(s.kind) << 8;
          const bool real = s.kind != Scalar::Kind::Complex;
          const double number = s.kind == Scalar::Kind::Float ? s.re : static_cast<double>(s.i);
          if (spec.kind == Kind::Scale && real && (number == 0 || number == 1)) {
            call.key.push_back(kHostScalar | kind | (number == 0 ? 1 << 16 : 1 << 17));
          } else {
            call.key.push_back(kHostScalar | kind);
            call.scalars.push_back(s);
          }
          if (def_.options.check)
            call.numbers.push_back(s.kind == Scalar::Kind::Float     ? hlo::Literal(s.re)
                                   : s.kind == Scalar::Kind::Complex ? hlo::Literal(std::complex<double>(s.re, s.im))
                                                                     : hlo::Literal(s.i));
        } else {
          parse_static(value, spec.kind, call);
        }
    }
  }
  if (def_.options.default_generator) {
    call.random = static_cast<int>(call.scalars.size());
    call.scalars.resize(call.scalars.size() + 2, {Scalar::Kind::Uint, 0, 0, 0});
  }
  if (def_.options.check) {
    def_.options.check(dtype_of(call.tensors.empty() ? c10::ScalarType::Float : call.tensors[0].tensor->scalar_type()),
                       call.numbers);
  }
  key_sharing(call);
}

}  // namespace tpu::aten
