// SPDX-License-Identifier: Apache-2.0
#include "aten/meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace tpu::aten {
namespace {

at::Tensor to_meta(const at::Tensor& tensor, MetaResult& out) {
  if (!tensor.defined()) {
    out.arguments.emplace_back();
    return tensor;
  }
  // Numbers stay on the CPU: a Python meta kernel gets them as Python numbers.
  if (tensor.dim() == 0 && tensor.device().is_cpu()) {
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

c10::IValue convert(const c10::IValue& value, MetaResult& out) {
  if (value.isTensor()) return to_meta(value.toTensor(), out);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& t : value.toListRef()) list.push_back(to_meta(t.toTensor(), out));
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    const auto elements = value.toListRef();
    bool tensors = !elements.empty();
    for (const c10::IValue& e : elements) tensors = tensors && (e.isTensor() || e.isNone());
    if (tensors) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& e : elements) {
        if (e.isTensor()) {
          list.push_back(to_meta(e.toTensor(), out));
        } else {
          out.arguments.emplace_back();
          list.push_back(std::nullopt);
        }
      }
      return list;
    }
  }
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  if (value.isGenerator()) return c10::IValue();  // the generator's device would not fit
  return value;
}

bool has_meta(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

MetaResult run_meta(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  MetaResult out;
  if (!has_meta(op)) return out;
  torch::jit::Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(convert(value, out));
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return out;
  } catch (const std::exception& error) {
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

}  // namespace tpu::aten
