// SPDX-License-Identifier: Apache-2.0
#include "aten/kernel.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>

#include <unordered_set>

#include "aten/captured_control.h"
#include "aten/copy.h"
#include "aten/error.h"
#include "aten/generator.h"
#include "aten/plan_builder.h"
#include "aten/sized.h"
#include "aten/storage.h"
#include "aten/trace.h"
#include "base/hash.h"
#include "base/location.h"
#include "runtime/capture.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/metrics.h"
#include "runtime/stream.h"

namespace tpu::aten {
namespace {

using lowering::Kind;
using runtime::Scalar;

// Whether a parameter of this kind can take such an argument.
bool fits(Kind kind, Form form, const std::string& type) {
  const bool optional = type.ends_with("?");
  const std::string base = optional ? type.substr(0, type.size() - 1) : type;
  switch (kind) {
    case Kind::Unused: return true;
    case Kind::Value:
      return (form == Form::Tensor && !optional) || form == Form::Scalar || base == "float" || base == "int" ||
             base == "SymInt";
    case Kind::OptValue:
      return form == Form::Tensor || form == Form::Scalar || base == "float" || base == "int" || base == "SymInt";
    case Kind::Values: return form == Form::TensorList || form == Form::ScalarList;
    case Kind::OptValues: return form == Form::OptTensorList || form == Form::TensorList;
    case Kind::Scale: return form == Form::Scalar;
    case Kind::Dim:
    case Kind::Int: return base == "int" || base == "SymInt";
    case Kind::OptInt: return base == "int" || base == "SymInt";
    case Kind::Axes: return base == "int[]" || base == "int" || base == "SymInt[]";
    case Kind::Bool: return base == "bool";
    case Kind::OptBool: return base == "bool";
    case Kind::Double: return base == "float" || form == Form::Scalar;
    case Kind::OptDouble: return base == "float" || form == Form::Scalar;
    case Kind::Str:
    case Kind::OptStr: return base == "str";
    case Kind::Dims:
    case Kind::OptDims: return base == "int[]" || base == "SymInt[]" || base == "SymInt" || base == "int";
    case Kind::Doubles:
    case Kind::OptDoubles: return base == "float[]";
    case Kind::Bools: return base == "bool[]";
    case Kind::DType:
    case Kind::OptDType: return base == "ScalarType" || base == "int";
    case Kind::Number: return form == Form::Scalar;
    case Kind::Random: return base == "Generator";
  }
  return false;
}

std::string type_text(const c10::Argument& arg) {
  std::string text = arg.real_type()->str();  // real_type keeps ScalarType, which type() calls int
  if (arg.real_type()->kind() == c10::TypeKind::ListType || text.find('[') != std::string::npos) {
    // "int[2]?" and "int[]" alike
    const bool optional = text.ends_with("?");
    const size_t bracket = text.find('[');
    text = text.substr(0, bracket) + "[]" + (optional ? "?" : "");
  }
  return text;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint64_t hash_key(const Call& call) {
  uint64_t hash = 0x243F6A8885A308D3ull;
  for (uint64_t word : call.key) hash = mix(hash, word);
  return hash;
}

}  // namespace

Form form_of(const c10::Argument& arg) {
  c10::TypePtr type = arg.type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return Form::Tensor;
    case c10::TypeKind::NumberType: return Form::Scalar;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return Form::TensorList;
      if (element->kind() == c10::TypeKind::OptionalType) return Form::OptTensorList;
      if (element->kind() == c10::TypeKind::NumberType) return Form::ScalarList;
      return Form::Other;
    }
    default: return Form::Other;
  }
}

OpKernel::OpKernel(const lowering::OpDef& def, const c10::FunctionSchema& schema, bool named, TensorBody body)
    : def_(def), body_(std::move(body)) {
  name_ = c10::toString(schema.operator_name());
  shown_ = schema.name();
  const auto& arguments = schema.arguments();
  const auto complain = [&](const auto&... why) {
    fail(ErrorKind::Internal, def.file, ":", def.line, ": lowering of '", def.name, "' for '", c10::toString(schema),
         "': ", why...);
  };
  size_t n_out = 0;
  for (const auto& arg : arguments) n_out += arg.is_out();
  const bool direct = arguments.size() == def.kinds.size();
  if (!direct && arguments.size() != def.kinds.size() + n_out) {
    complain("it has ", def.kinds.size(), " parameters, the schema ", arguments.size());
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    ArgSpec spec{Kind::Unused, form_of(arguments[i]), false, i >= def.kinds.size()};
    if (!spec.hidden) {
      spec.kind = def.kinds[i];
      // int[] may be run-time numbers too.
      if (spec.kind == Kind::Values && type_text(arguments[i]) == "int[]") spec.form = Form::ScalarList;
      if (!body_ && !fits(spec.kind, spec.form, type_text(arguments[i]))) {
        complain("parameter ", i, " (", arguments[i].name(), ") is ", lowering::kind_name(spec.kind),
                 ", the schema says ", type_text(arguments[i]));
      }
    }
    spec.written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    args_.push_back(spec);
  }
  if (!def.options.writes.empty() && named) {
    for (int i : def.options.writes) args_[static_cast<size_t>(i)].written = true;
  }
  for (size_t i = 0; i < args_.size(); ++i) {
    if (args_[i].written) writes_.push_back(static_cast<int>(i));
  }
  for (const auto& ret : schema.returns()) {
    int alias = -1;
    if (ret.alias_info() && ret.alias_info()->isWrite()) {
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].alias_info() && *arguments[i].alias_info() == *ret.alias_info()) alias = static_cast<int>(i);
      }
    }
    returned_.push_back(alias);
  }
}

OpPlan* OpKernel::find(const Call& call, uint64_t hash) {
  while (busy_.test_and_set(std::memory_order_acquire)) {
  }
  OpPlan* found = nullptr;
  const auto range = plans_.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    const auto& key = it->second.key;
    if (key.size() == call.key.size() && std::memcmp(key.data(), call.key.data(), key.size() * 8) == 0) {
      found = it->second.plan.get();
      break;
    }
  }
  busy_.clear(std::memory_order_release);
  return found;
}

OpPlan* OpKernel::insert(const Call& call, uint64_t hash, std::unique_ptr<OpPlan> plan) {
  if (OpPlan* raced = find(call, hash)) return raced;
  OpPlan* raw = plan.get();
  while (busy_.test_and_set(std::memory_order_acquire)) {
  }
  plans_.emplace(hash, Entry{call.key, std::move(plan)});
  busy_.clear(std::memory_order_release);
  return raw;
}

// Whether the lists among the arguments hold tensors of several devices.
bool OpKernel::mixes_devices(const torch::jit::Stack& stack) const {
  std::optional<c10::Device> device;
  for (size_t i = 0; i < args_.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - args_.size() + i];
    if (args_[i].form != Form::TensorList || !value.isTensorList()) continue;
    for (const c10::IValue& t : value.toListRef()) {
      const c10::Device here = t.toTensor().device();
      if (here != device.value_or(here)) return true;
      device = here;
    }
  }
  return device && device->type() != c10::DeviceType::PrivateUse1;
}

// Whether a tensor stands twice in a list that is written to: its second turn has to see the first.
bool OpKernel::writes_twice(const torch::jit::Stack& stack) const {
  if (writes_.empty()) return false;
  std::unordered_set<const c10::StorageImpl*> seen;
  for (int i : writes_) {
    const c10::IValue& value = stack[stack.size() - args_.size() + static_cast<size_t>(i)];
    if (!value.isTensorList()) continue;
    for (const c10::IValue& t : value.toListRef()) {
      if (!seen.insert(t.toTensor().unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()).second) return true;
    }
  }
  return false;
}

void OpKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (def_.options.lists && (mixes_devices(*stack) || writes_twice(*stack))) [[unlikely]] {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }
  guarded([&] {
    if (def_.options.mask_indices) [[unlikely]]
      return run_with_masks(op, stack);
    run(op, stack, 0);
  });
}

const OpPlan& OpKernel::call(const c10::OperatorHandle& op, c10::ArrayRef<at::Tensor> tensors,
                             c10::SmallVectorImpl<at::Tensor>& fresh) {
  return guarded([&]() -> const OpPlan& {
    Call call;
    parse_list(tensors, call);
    torch::jit::Stack stack;
    OpPlan& plan = plan_for(op, call, [&]() -> const torch::jit::Stack& {
      stack.emplace_back(c10::List<at::Tensor>(tensors));
      return stack;
    });
    c10::SmallVector<runtime::ValueRef, 4> values;
    launch(plan, call, values);
    fresh_results(plan, call, values, fresh);
    return plan;
  });
}

void OpKernel::run_with_masks(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto n = static_cast<ptrdiff_t>(args_.size());
  const bool reads = args_.size() == 2;  // x[mask]: index_put, functional or not, has as many values as the mask
  const std::optional<Narrowed> narrowed = expand_masks({&*(stack->end() - n), args_.size()}, reads);
  run(op, stack, 0);
  if (narrowed) stack->back() = narrow_result(stack->back().toTensor(), *narrowed);
}

OpPlan& OpKernel::add_plan(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const Call& call,
                           uint64_t hash) {
  runtime::metrics::count_plan();
  std::unique_ptr<OpPlan> plan = build_plan(*this, op, stack, call);
  plan->plan.line = user_location();
  const c10::ArrayRef<c10::IValue> arguments(stack.data() + (stack.size() - args_.size()), args_.size());
  CallNote note = note_of(args_, arguments, call);
  note.arguments.insert(note.arguments.end(), fixed_.begin(), fixed_.end());
  plan->plan.reason = history_->reason(shown_, std::move(note), plan->plan.line);
  if (plan->early) {
    plan->early->plan.line = plan->plan.line;
    plan->early->plan.reason = "values given to " + shown_ + " are checked, and nothing is known of them";
  }
  return *insert(call, hash, std::move(plan));
}

void OpKernel::describe(std::string shown, std::shared_ptr<CallHistory> history, std::vector<ArgumentNote> fixed) {
  shown_ = std::move(shown);
  history_ = std::move(history);
  fixed_ = std::move(fixed);
}

OpPlan& OpKernel::plan_for(const c10::OperatorHandle& op, const Call& call,
                           c10::function_ref<const torch::jit::Stack&()> arguments) {
  const uint64_t hash = hash_key(call);
  if (OpPlan* plan = find(call, hash)) [[likely]]
    return *plan;
  return add_plan(op, arguments(), call, hash);
}

void OpKernel::run(const c10::OperatorHandle& op, torch::jit::Stack* stack, int depth) {
  Call call;
  parse(stack, call);
  OpPlan& plan = plan_for(op, call, [&]() -> const torch::jit::Stack& { return *stack; });
  if (!plan.overlaps.empty()) [[unlikely]]
    check_overlaps(plan, call);
  if (!plan.resizes.empty()) [[unlikely]] {
    TORCH_CHECK(depth == 0, name_, ": the out= tensor did not take on the size of the result");
    for (const auto& [index, sizes] : plan.resizes) call.tensors[static_cast<size_t>(index)].tensor->resize_(sizes);
    return run(op, stack, 1);
  }
  c10::SmallVector<runtime::ValueRef, 4> values;
  launch(plan, call, values);
  deliver(plan, call, values, stack);
}

// Checks, random numbers, the launch itself, and what it writes to.
void OpKernel::launch(OpPlan& plan, Call& call, c10::SmallVectorImpl<runtime::ValueRef>& values) const {
  if (runtime::Capture* capture = runtime::Capture::current(); capture && call.random >= 0) {
    const auto start = static_cast<int64_t>(capture->reserve(plan.random_count));
    call.scalars[static_cast<size_t>(call.random)] = {Scalar::Kind::Seed, 0, 0, 0};
    call.scalars[static_cast<size_t>(call.random) + 1] = {Scalar::Kind::Offset, start, 0, 0};
  } else if (call.random >= 0 && (!body_ || plan.random_count > 0)) {
    const runtime::RandomState state = reserve(
        call.generator, at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(call.device)), plan.random_count);
    call.scalars[static_cast<size_t>(call.random)] = {Scalar::Kind::Uint, static_cast<int64_t>(state.seed), 0, 0};
    call.scalars[static_cast<size_t>(call.random) + 1] = {Scalar::Kind::Uint, static_cast<int64_t>(state.offset), 0, 0};
  }
  if (plan.early) [[unlikely]]
    judge(*plan.early, call);
  launch_plan(plan, call, values);
  // First the writes: the launch may have consumed the old values.
  for (const ResultSpec& result : plan.results) {
    if (result.to != ResultSpec::To::Write) continue;
    const TensorArg& arg = call.tensors[static_cast<size_t>(result.tensor)];
    set_value(arg.tensor->storage(), *arg.slot, values[static_cast<size_t>(result.program_result)]);
    // PyTorch's wrappers count writes to single tensors, and leave lists to the kernel.
    if (def_.options.lists && !arg.tensor->is_inference()) arg.tensor->unsafeGetTensorImpl()->bump_version();
  }
  if (runtime::eager_mode() == runtime::EagerMode::DeferNeverAndLaunchBlocking) [[unlikely]] {
    try {
      runtime::synchronize_stream(call.device, runtime::current_stream(call.device));
    } catch (const Error& error) {
      throw Error(error.kind(), name_ + ": " + error.what());
    }
  }
  if (!plan.checks.empty()) {
    if (runtime::Capture::current())
      captured_checks(values.back(), plan.checks);
    else
      raise_for_offenders(plan.checks, values.back());
  }
}

// As the CPU: what is written to may be one of the inputs, unless the operator reads elements elsewhere, but no part of
// one. Offsets are no part of the key, so each call is judged.
void OpKernel::check_overlaps(const OpPlan& plan, const Call& call) const {
  for (const auto& [written, read] : plan.overlaps) {
    const at::Tensor& out = *call.tensors[static_cast<size_t>(written)].tensor;
    const at::Tensor& in = *call.tensors[static_cast<size_t>(read)].tensor;
    if (def_.options.no_overlap) {
      at::assert_no_overlap(out, in);
    } else {
      at::assert_no_partial_overlap(out, in);
    }
  }
}

runtime::ValueRef value_of(runtime::Slot& slot) {
  runtime::ValueRef value = slot.value();
  if (!value) {
    if (runtime::Capture* capture = runtime::Capture::current()) return capture->zeros(*slot.type());
    slot.set(zeros_value(slot.type(), slot.device()));
    value = slot.value();
  }
  return value;
}

c10::SmallVector<runtime::Operand, 8> operands_of(const std::vector<int>& tensors, const Call& call) {
  c10::SmallVector<runtime::Operand, 8> operands;
  for (int index : tensors) {
    const TensorArg& arg = call.tensors[static_cast<size_t>(index)];
    operands.push_back({value_of(*arg.slot), arg.slot});
  }
  return operands;
}

void launch_plan(OpPlan& plan, Call& call, c10::SmallVectorImpl<runtime::ValueRef>& values) {
  c10::SmallVector<runtime::Operand, 8> operands = operands_of(plan.operands, call);
  values.resize(plan.plan.results.size());
  runtime::launch(plan.plan, call.device, {operands.data(), operands.size()},
                  {call.scalars.data(), call.scalars.size()}, {values.data(), values.size()});
}

at::Tensor make_tensor(c10::Storage storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                       c10::ScalarType dtype) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// Makes tensors of the results that are no argument; true where they belong to a list.
bool OpKernel::fresh_results(const OpPlan& plan, const Call& call, c10::ArrayRef<runtime::ValueRef> values,
                             c10::SmallVectorImpl<at::Tensor>& fresh) {
  bool in_list = false;
  for (const ResultSpec& result : plan.results) {
    if (result.to != ResultSpec::To::Fresh) continue;
    in_list |= result.list >= 0;
    if (result.program_result < 0) {
      fresh.emplace_back();
      continue;
    }
    const runtime::ValueRef& value = values[static_cast<size_t>(result.program_result)];
    fresh.push_back(make_tensor(make_storage(call.device, value), result.sizes, result.strides, 0, result.dtype));
  }
  return in_list;
}

void OpKernel::deliver(OpPlan& plan, Call& call, c10::ArrayRef<runtime::ValueRef> values,
                       torch::jit::Stack* stack) const {
  c10::SmallVector<at::Tensor, 4> fresh;
  const bool in_list = fresh_results(plan, call, values, fresh);
  const size_t n = args_.size();
  if (returned_.size() == 1 && returned_[0] >= 0) {
    c10::IValue kept = (*stack)[stack->size() - n + static_cast<size_t>(returned_[0])];
    torch::jit::drop(*stack, n);
    stack->push_back(std::move(kept));
    return;
  }
  c10::SmallVector<c10::IValue, 4> kept;
  for (int alias : returned_) {
    kept.push_back(alias >= 0 ? (*stack)[stack->size() - n + static_cast<size_t>(alias)] : c10::IValue());
  }
  torch::jit::drop(*stack, n);
  if (in_list) {
    stack->push_back(c10::List<at::Tensor>());
    auto list = stack->back().toTensorList();
    for (at::Tensor& t : fresh) list.push_back(std::move(t));
    return;
  }
  size_t next = 0;
  for (size_t i = 0; i < returned_.size(); ++i) {
    if (returned_[i] >= 0) {
      stack->push_back(std::move(kept[i]));
    } else {
      stack->push_back(next < fresh.size() ? std::move(fresh[next]) : at::Tensor());
      ++next;
    }
  }
}

}  // namespace tpu::aten
