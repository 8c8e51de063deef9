// SPDX-License-Identifier: Apache-2.0
#include "aten/meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

namespace tpu::aten {
namespace {

bool is_host_scalar(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.device().is_cpu() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

at::Tensor to_meta(const at::Tensor& tensor, bool scalars_too, MetaResult& out) {
  if (!tensor.defined()) {
    out.arguments.emplace_back();
    return tensor;
  }
  // Numbers stay on the CPU: a Python meta kernel gets them as Python numbers.
  if (tensor.dim() == 0 && tensor.device().is_cpu() && !(scalars_too && is_host_scalar(tensor))) {
    out.arguments.push_back(tensor);
    return tensor;
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    at::Tensor number = at::zeros({}, tensor.options().device(at::kCPU));
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    out.arguments.push_back(number);
    return number;
  }
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  out.arguments.push_back(meta);
  return meta;
}

// The argument with its tensors replaced, for a call on another device.
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& f,
                        c10::DeviceType device) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& t : value.toListRef()) list.push_back(f(t.toTensor()));
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    const auto elements = value.toListRef();
    bool tensors = !elements.empty();
    for (const c10::IValue& e : elements) tensors = tensors && (e.isTensor() || e.isNone());
    if (tensors) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& e : elements) {
        const at::Tensor t = f(e.isTensor() ? e.toTensor() : at::Tensor());
        list.push_back(e.isTensor() ? std::optional(t) : std::nullopt);
      }
      return list;
    }
  }
  if (value.isDevice()) return c10::Device(device);
  if (value.isGenerator()) return c10::IValue();  // the generator's device would not fit
  return value;
}

// What the CPU says of tensors of this geometry, full of zeros: it has the last word on the class of an error and its
// text, as meta kernels are shared with other backends. Returns if it can't be asked or sees nothing wrong.
void ask_the_cpu(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kMostBytes = 1 << 26;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return;
  size_t bytes = 0;
  const auto zeros = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined() || t.device().is_cpu()) return t;
    int64_t span = t.numel() > 0 ? 1 : 0;
    for (int64_t d = 0; d < t.dim() && span > 0; ++d) span += (t.size(d) - 1) * t.stride(d);
    bytes += static_cast<size_t>(span) * t.element_size();
    if (bytes > kMostBytes) return at::Tensor();
    at::Tensor made = at::zeros({span}, t.options().device(at::kCPU)).as_strided(t.sizes(), t.strides());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  };
  torch::jit::Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(map_tensors(value, zeros, c10::DeviceType::CPU));
  if (bytes <= kMostBytes) op.callBoxed(stack);
}

bool has_meta(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

namespace {

MetaResult run_meta(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, bool scalars_too) {
  MetaResult out;
  if (!has_meta(op)) return out;
  torch::jit::Stack stack;
  for (const c10::IValue& value : arguments) {
    stack.push_back(
        map_tensors(value, [&](const at::Tensor& t) { return to_meta(t, scalars_too, out); }, c10::DeviceType::Meta));
  }
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return out;
  } catch (const std::exception& error) {
    ask_the_cpu(op, arguments);
    // Some in Python, such as masked_fill's, let a CPU tensor without dimensions meet CUDA alone.
    const auto host = [](const c10::IValue& v) {
      return v.isTensor() && v.toTensor().defined() && is_host_scalar(v.toTensor());
    };
    if (!scalars_too && std::any_of(arguments.begin(), arguments.end(), host)) return run_meta(op, arguments, true);
    // Meta kernels in Python assert what the CPU's kernels check.
    std::string_view text = error.what();
    constexpr std::string_view kAssertion = "AssertionError: ";
    if (!text.starts_with(kAssertion)) throw;
    text.remove_prefix(kAssertion.size());
    TORCH_CHECK(false, text.substr(0, text.find('\n')));
  }
  out.known = true;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      out.results.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) out.results.push_back(t);
    }
  }
  return out;
}

}  // namespace

MetaResult run_meta(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  return run_meta(op, arguments, false);
}

}  // namespace tpu::aten
