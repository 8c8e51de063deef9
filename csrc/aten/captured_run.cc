// SPDX-License-Identifier: Apache-2.0
#include "aten/captured_run.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>

#include "aten/captured_control.h"
#include "aten/storage.h"
#include "hlo/math.h"

namespace tpu::aten {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Dims storage_order(const Dims& sizes, std::vector<int64_t>& strides) {
  const size_t rank = sizes.size();
  if (strides.size() == rank && hlo::numel(sizes) > 0) {
    Dims order(rank);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
    });
    int64_t dense = 1;
    bool is_dense = true;
    for (size_t k = rank; k-- > 0;) {
      const auto d = static_cast<size_t>(order[k]);
      if (sizes[d] == 1) continue;
      if (strides[d] != dense) is_dense = false;
      dense *= sizes[d];
    }
    if (is_dense) return order;
  }
  const c10::DimVector contiguous = c10::contiguous_strides(sizes);
  strides.assign(contiguous.begin(), contiguous.end());
  return {};
}

Value to_storage_order(Value v, std::vector<int64_t>& strides) {
  const Dims order = storage_order(v.dims(), strides);
  return order.empty() ? v : hlo::transpose(v, order);
}

namespace {
thread_local std::shared_ptr<const void> attached;
}

void attach_to_plan(std::shared_ptr<const void> note) { attached = std::move(note); }

// A tensor like the call's, whose value is a placeholder for the graph's.
at::Tensor CapturedRun::placeholder_of(size_t tensor, runtime::Capture& capture) const {
  const TensorArg& arg = call.tensors[tensor];
  if (!arg.tensor) return {};
  Value v = read(tensor);
  std::vector<int64_t> order = arg.tensor->strides().vec();
  v = to_storage_order(v, order);
  at::Tensor made = make_tensor(make_storage(call.device, capture.placeholder(v)), arg.tensor->sizes(), order, 0,
                                arg.tensor->scalar_type());
  if (arg.tensor->unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

Value captured_value(hlo::Graph& graph, const at::Tensor& t, runtime::Capture& capture) {
  if (!t.defined()) return {};
  if (!t.is_privateuseone()) throw TraceFailed("a result is not on the device");
  runtime::Slot& slot = slot_of(*t.storage().unsafeGetStorageImpl());
  Value base = capture.value_of(value_of(slot));
  const hlo::DType dtype = dtype_of(t.scalar_type());
  lowering::View view{Dims(t.sizes().begin(), t.sizes().end()), Dims(t.strides().begin(), t.strides().end()), dtype};
  view.conj = t.is_conj();
  view.neg = t.is_neg();
  lowering::Digits digits;
  const int64_t count = base.type().bytes() / hlo::byte_size(dtype);
  if (!t.is_contiguous() || t.storage_offset() != 0 || t.numel() != count) {
    view.access = lowering::classify(count, view.sizes, view.strides, t.storage_offset(), digits);
  }
  Values corner;
  for (int i = 0; i < digits.count; ++i) corner.push_back(hlo::scalar(graph, DType::S64, digits.values[i]));
  return lowering::read(base, view, corner);
}

Values CapturedRun::operator()() {
  runtime::Capture capture(graph, call.device, seed, offset);
  CaptureScope scope(capture, graph, call.device, seed, offset);
  torch::jit::Stack stack;
  std::vector<at::Tensor> writable;
  std::vector<runtime::ValueRef> before;
  size_t tensor = 0;
  const auto next = [&](const ArgSpec& spec) {
    at::Tensor t = placeholder_of(tensor, capture);
    if (spec.written) {
      written.push_back(static_cast<int>(tensor));
      writable.push_back(t);
      before.push_back(t.defined() ? slot_of(*t.storage().unsafeGetStorageImpl()).value() : runtime::ValueRef());
    }
    ++tensor;
    return t;
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const ArgSpec& spec = specs[i];
    const c10::IValue& value = arguments[i];
    if (spec.form == Form::Tensor) {
      at::Tensor t = next(spec);
      stack.push_back(t.defined() || !value.isNone() ? c10::IValue(t) : c10::IValue());
    } else if (spec.form == Form::TensorList) {
      c10::List<at::Tensor> list;
      for (size_t j = 0; j < value.toListRef().size(); ++j) list.push_back(next(spec));
      stack.push_back(list);
    } else if (spec.form == Form::OptTensorList) {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t j = 0; j < value.toListRef().size(); ++j) {
        at::Tensor t = next(spec);
        list.push_back(t.defined() ? std::make_optional(t) : std::nullopt);
      }
      stack.push_back(list);
    } else {
      stack.push_back(value);
    }
  }
  std::shared_ptr<const void> outer = std::exchange(attached, nullptr);
  try {
    body(op, &stack);
  } catch (const std::exception& error) {
    attached = std::move(outer);
    throw TraceFailed(error.what());
  }
  note = std::exchange(attached, std::move(outer));
  Values results;
  if (stack.size() < returned.size()) throw TraceFailed("too few results");
  for (size_t i = 0; i < returned.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - returned.size() + i];
    if (returned[i] >= 0) continue;
    std::vector<at::Tensor> tensors;
    if (value.isTensorList())
      tensors = value.toTensorVector();
    else
      tensors = {value.isTensor() ? value.toTensor() : at::Tensor()};
    for (const at::Tensor& t : tensors) {
      results.push_back(captured_value(graph, t, capture));
      strides.push_back(t.defined() ? t.strides().vec() : std::vector<int64_t>());
    }
  }
  for (size_t i = 0; i < writable.size(); ++i) {
    const bool changed = writable[i].defined() &&
                         slot_of(*writable[i].storage().unsafeGetStorageImpl()).value().get() != before[i].get();
    results.push_back(changed ? captured_value(graph, writable[i], capture) : Value());
  }
  constants = capture.constants();
  random_count = capture.reserved();
  return results;
}

}  // namespace tpu::aten
