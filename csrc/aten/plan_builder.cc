// SPDX-License-Identifier: Apache-2.0
#include "aten/plan_builder.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <numeric>

#include "aten/captured_run.h"
#include "aten/early_checks.h"
#include "aten/meta.h"
#include "aten/storage.h"
#include "aten/target.h"
#include "base/error.h"
#include "base/log.h"
#include "hlo/bounds.h"
#include "hlo/stages.h"
#include "lowering/promote.h"
#include "runtime/executor.h"

namespace tpu::aten {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;
using lowering::Argument;
using lowering::Kind;
using runtime::Scalar;

lowering::View view_of(const TensorArg& arg) {
  c10::TensorImpl* impl = arg.tensor->unsafeGetTensorImpl();
  lowering::View view;
  view.sizes = Dims(impl->sizes().begin(), impl->sizes().end());
  view.strides = Dims(impl->strides().begin(), impl->strides().end());
  view.dtype = dtype_of(arg.tensor->scalar_type());
  view.access = arg.access;
  view.conj = impl->is_conj();
  view.neg = impl->is_neg();
  return view;
}

hlo::Literal literal(const c10::Scalar& s) {
  if (s.isComplex()) return std::complex<double>(s.toComplexDouble());
  if (s.isFloatingPoint()) return s.toDouble();
  if (s.isBoolean()) return s.toBool();
  return s.toLong();
}

bool is_wide(c10::ScalarType t) { return t == c10::ScalarType::Double || t == c10::ScalarType::ComplexDouble; }

}  // namespace

class PlanBuilder {
 public:
  PlanBuilder(const OpKernel& kernel, const c10::OperatorHandle& op, const torch::jit::Stack& stack, const Call& call)
      : kernel_(kernel),
        op_(op),
        call_(call),
        arguments_(stack.data() + (stack.size() - kernel.args_.size()), kernel.args_.size()) {}

  std::unique_ptr<OpPlan> build() {
    if (!kernel_.def_.options.no_meta) meta_ = run_meta(op_, arguments_);
    note_overlaps();  // before anything is resized
    if (meta_.known && needs_resize()) return std::move(plan_);
    plan_->plan.name = kernel_.name_;
    plan_->plan.graph = std::make_unique<hlo::Graph>();
    info_.graph = &graph();
    info_.precision = call_.precision;
    info_.default_dtype = dtype_of(call_.default_dtype);
    info_.target = &target();
    for (const at::Tensor& t : expected_results()) {
      if (t.defined()) {
        info_.results.push_back(Type{dtype_of(t.scalar_type()), Dims(t.sizes().begin(), t.sizes().end())});
      } else {
        info_.results.push_back(std::nullopt);
      }
    }
    for (const TensorArg& arg : call_.tensors) info_.contiguous.push_back(arg.tensor && arg.tensor->is_contiguous());
    decide_scalar_width();
    lowering::CallScope scope(&info_);
    Values results = kernel_.body_ ? captured_results() : kernel_.def_.body(make_arguments());
    place_results(results);
    if (!plan_->resizes.empty()) return std::move(plan_);
    place_checks();
    finish();
    return std::move(plan_);
  }

 private:
  hlo::Graph& graph() { return *plan_->plan.graph; }

  [[noreturn]] void internal(const std::string& what) const {
    fail(ErrorKind::Internal, "internal error of torch_tpu: ", kernel_.name_, " (", kernel_.def_.file, ":",
         kernel_.def_.line, "): ", what);
  }

  // What results are expected to be: the returns of the meta kernel, or the tensors written to.
  std::vector<at::Tensor> expected_results() const {
    if (!meta_.known) return {};
    std::vector<at::Tensor> out;
    // Returns that alias an argument are counted through the arguments below. A list never does.
    const bool one_each = meta_.results.size() == kernel_.returned_.size();
    for (size_t i = 0; i < meta_.results.size(); ++i) {
      if (!one_each || kernel_.returned_[i] < 0) out.push_back(meta_.results[i]);
    }
    size_t flat = 0;
    for (size_t i = 0; i < kernel_.args_.size(); ++i) {
      const size_t count = tensors_in(i);
      if (kernel_.args_[i].written) {
        for (size_t j = 0; j < count; ++j) out.push_back(meta_.arguments.at(flat + j));
        if (count == 0 && kernel_.args_[i].form == Form::Tensor) out.emplace_back();  // None: nothing to write to
      }
      flat += count;
    }
    return out;
  }

  // How many tensors schema argument `i` holds, as the meta run flattens them.
  size_t tensors_in(size_t i) const {
    const c10::IValue& value = arguments_[i];
    switch (kernel_.args_[i].form) {
      case Form::Tensor: return value.isTensor() ? 1 : 0;
      case Form::TensorList: return value.isTensorList() ? value.toListRef().size() : 0;
      case Form::OptTensorList: return value.toListRef().size();
      default: return 0;
    }
  }

  // The schema argument that each of the call's tensors belongs to.
  std::vector<size_t> arguments_of_tensors() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < kernel_.args_.size(); ++i) {
      const ArgSpec& spec = kernel_.args_[i];
      if (spec.kind == Kind::Unused && !spec.written) continue;
      out.insert(out.end(), spec.form == Form::Tensor ? 1 : tensors_in(i), i);
    }
    return out;
  }

  // Lists are many calls in one, each with tensors of its own.
  void note_overlaps() {
    if (kernel_.def_.options.lists) return;
    const std::vector<size_t> from = arguments_of_tensors();
    const auto written = [&](size_t tensor) { return kernel_.args_[from[tensor]].written; };
    for (size_t i = 0; i < from.size(); ++i) {
      const TensorArg& out = call_.tensors[i];
      for (size_t j = 0; j < from.size() && written(i) && out.tensor; ++j) {
        if (!written(j) && call_.tensors[j].slot == out.slot)
          plan_->overlaps.emplace_back(static_cast<int>(i), static_cast<int>(j));
      }
    }
  }

  bool needs_resize() {
    size_t flat_meta = 0;
    int flat_call = 0;
    for (size_t i = 0; i < kernel_.args_.size(); ++i) {
      const size_t count = tensors_in(i);
      const ArgSpec& spec = kernel_.args_[i];
      const bool parsed = spec.kind != Kind::Unused || spec.written;
      if (spec.written && spec.hidden) {
        for (size_t j = 0; j < count; ++j) {
          const at::Tensor& meta = meta_.arguments[flat_meta + j];
          const TensorArg& arg = call_.tensors[static_cast<size_t>(flat_call) + j];
          if (meta.defined() && arg.tensor && meta.sizes() != arg.tensor->sizes()) {
            if (!kernel_.def_.options.overlap_ok) at::assert_no_internal_overlap(*arg.tensor);
            plan_->resizes.emplace_back(flat_call + static_cast<int>(j), meta.sizes().vec());
          }
        }
      }
      flat_meta += count;
      if (parsed) flat_call += static_cast<int>(spec.form == Form::Tensor ? 1 : count);
    }
    return !plan_->resizes.empty();
  }

  // Float scalars are uploaded in float32 unless something in the call is in float64: a TPU has no
  // native float64, and PyTorch computes in the operands' precision anyway.
  void decide_scalar_width() {
    wide_ = info_.results.empty();
    for (const TensorArg& arg : call_.tensors) {
      if (arg.tensor && arg.slot && is_wide(arg.tensor->scalar_type())) wide_ = true;
      if (arg.tensor && !arg.slot && is_wide(arg.tensor->scalar_type()) &&
          !arg.tensor->unsafeGetTensorImpl()->is_wrapped_number())
        wide_ = true;
    }
    for (const auto& type : info_.results) {
      if (type && (type->dtype == DType::F64 || type->dtype == DType::C128)) wide_ = true;
    }
  }

  Value scalar_param(size_t index, DType dtype) {
    Value v = graph().parameter(Type{dtype, {}});
    params_.push_back({runtime::Param::From::Scalar, static_cast<int>(index), runtime::intern(Type{dtype, {}})});
    return v;
  }

  DType scalar_dtype(Scalar::Kind kind) const {
    switch (kind) {
      case Scalar::Kind::Bool: return DType::PRED;
      case Scalar::Kind::Int: return DType::S64;
      case Scalar::Kind::Uint:
      case Scalar::Kind::Seed:
      case Scalar::Kind::Offset: return DType::U64;
      case Scalar::Kind::Float: return wide_ ? DType::F64 : DType::F32;
      case Scalar::Kind::Complex: return wide_ ? DType::C128 : DType::C64;
    }
    return DType::F32;
  }

  Value weak_scalar(size_t index) {
    Value v = scalar_param(index, scalar_dtype(call_.scalars[index].kind));
    info_.weak.push_back(v);
    return v;
  }

  // The slot's whole value as a parameter, one for each slot.
  Value base_of(size_t tensor) {
    const TensorArg& arg = call_.tensors[tensor];
    for (const auto& [slot, value] : bases_) {
      if (slot == arg.slot) return value;
    }
    Value v = graph().parameter(*arg.type);
    params_.push_back({runtime::Param::From::Operand, static_cast<int>(plan_->operands.size()), arg.type});
    plan_->operands.push_back(static_cast<int>(tensor));
    bases_.emplace_back(arg.slot, v);
    return v;
  }

  Values digits_of(const TensorArg& arg, size_t tensor) {
    auto& digits = digits_[tensor];
    if (digits.empty()) {
      for (int i = 0; i < arg.digits; ++i)
        digits.push_back(scalar_param(static_cast<size_t>(arg.scalar + i), DType::S64));
    }
    return digits;
  }

  Value read_tensor(size_t tensor) {
    const TensorArg& arg = call_.tensors[tensor];
    if (!arg.tensor) return {};
    if (!arg.slot) {
      const auto index = static_cast<size_t>(arg.scalar);
      if (arg.tensor->unsafeGetTensorImpl()->is_wrapped_number()) return weak_scalar(index);
      DType dtype = dtype_of(arg.tensor->scalar_type());
      const DType carried = dtype == DType::BF16 || dtype == DType::F16 ? DType::F32 : dtype;
      return hlo::convert(scalar_param(index, carried), dtype);
    }
    Value v = arg.identity ? base_of(tensor) : lowering::read(base_of(tensor), view_of(arg), digits_of(arg, tensor));
    if (arg.tensor->unsafeGetTensorImpl()->is_wrapped_number()) info_.weak.push_back(v);
    return v;
  }

  int64_t first_rank() const {
    for (const TensorArg& arg : call_.tensors) {
      if (arg.tensor) return arg.tensor->dim();
    }
    return 0;
  }

  int64_t wrap(int64_t dim) const {
    const int64_t rank = std::max<int64_t>(first_rank(), 1);
    TORCH_CHECK_INDEX(dim >= -rank && dim < rank, "Dimension out of range (expected to be in range of [", -rank, ", ",
                      rank - 1, "], but got ", dim, ")");
    return dim < 0 ? dim + rank : dim;
  }

  // Walks the arguments in the order of OpKernel::parse.
  std::vector<Argument> make_arguments() {
    std::vector<Argument> out;
    size_t tensor = 0, scalar = 0;
    const auto next_tensor = [&] {
      const TensorArg& arg = call_.tensors[tensor];
      scalar += static_cast<size_t>(arg.digits);
      if (arg.tensor && !arg.slot) ++scalar;
      return tensor++;
    };
    for (size_t i = 0; i < kernel_.args_.size(); ++i) {
      const ArgSpec& spec = kernel_.args_[i];
      const c10::IValue& value = arguments_[i];
      Argument a;
      a.given = !value.isNone();
      switch (spec.form) {
        case Form::Tensor: {
          if (spec.kind == Kind::Unused && !spec.written) break;
          const size_t t = next_tensor();
          a.given = call_.tensors[t].tensor != nullptr;
          if (spec.written) written_tensors_.push_back(static_cast<int>(t));
          if (spec.kind != Kind::Unused) a.values.push_back(read_tensor(t));
          break;
        }
        case Form::TensorList:
        case Form::OptTensorList: {
          if (spec.kind == Kind::Unused && !spec.written) break;
          const size_t count = value.toListRef().size();
          for (size_t j = 0; j < count; ++j) {
            const size_t t = next_tensor();
            if (spec.written) written_tensors_.push_back(static_cast<int>(t));
            if (spec.kind != Kind::Unused) a.values.push_back(read_tensor(t));
          }
          break;
        }
        case Form::ScalarList:
          if (spec.kind == Kind::Values) {
            for (size_t j = 0; j < value.toListRef().size(); ++j) a.values.push_back(weak_scalar(scalar++));
          }
          break;
        default:
          if (spec.kind == Kind::Random) {
            a.values = {scalar_param(scalar, DType::U64), scalar_param(scalar + 1, DType::U64)};
            scalar += 2;
          } else if (spec.kind == Kind::Value || spec.kind == Kind::OptValue) {
            if (a.given) a.values.push_back(weak_scalar(scalar++));
          } else if (spec.kind == Kind::Scale) {
            fill_scale(value, a, scalar);
          } else if (a.given && spec.kind != Kind::Unused) {
            fill_static(value, spec.kind, a);
          } else if (spec.kind == Kind::Axes) {
            a.dims = all_axes();
          }
      }
      if (!spec.hidden) out.push_back(std::move(a));
    }
    if (kernel_.def_.options.default_generator) {
      info_.random = {scalar_param(scalar, DType::U64), scalar_param(scalar + 1, DType::U64)};
    }
    return out;
  }

  void fill_scale(const c10::IValue& value, Argument& a, size_t& scalar) {
    const c10::Scalar s = value.toScalar();
    if (!s.isComplex()) {
      a.zero = s.toDouble() == 0;
      a.one = s.toDouble() == 1;
    }
    if (!a.zero && !a.one) a.values.push_back(weak_scalar(scalar++));
  }

  Dims all_axes() const {
    Dims dims(static_cast<size_t>(first_rank()));
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  }

  void fill_static(const c10::IValue& value, Kind kind, Argument& a) {
    switch (kind) {
      case Kind::Int:
      case Kind::OptInt: a.i = value.toInt(); break;
      case Kind::Dim: a.i = wrap(value.toInt()); break;
      case Kind::Axes: {
        Dims dims = value.isInt() ? Dims{value.toInt()} : Dims(value.toIntVector());
        a.given = !dims.empty();
        if (dims.empty())
          dims = all_axes();
        else
          for (int64_t& d : dims) d = wrap(d);
        std::sort(dims.begin(), dims.end());
        if (first_rank() == 0) dims.clear();
        a.dims = std::move(dims);
        break;
      }
      case Kind::Bool:
      case Kind::OptBool: a.i = value.toBool(); break;
      case Kind::Double:
      case Kind::OptDouble: a.d = value.toScalar().toDouble(); break;
      case Kind::Str:
      case Kind::OptStr: a.s = value.toStringRef(); break;
      case Kind::Dims:
      case Kind::OptDims: a.dims = value.isInt() ? Dims{value.toInt()} : Dims(value.toIntVector()); break;
      case Kind::Doubles:
      case Kind::OptDoubles: a.doubles = value.toDoubleVector(); break;
      case Kind::Bools:
        for (bool b : value.toBoolList()) a.dims.push_back(b);
        break;
      case Kind::Number: a.number = literal(value.toScalar()); break;
      case Kind::DType:
      case Kind::OptDType: a.i = static_cast<int64_t>(dtype_of(static_cast<c10::ScalarType>(value.toInt()))); break;
      default: internal(std::string("no static argument of kind ") + lowering::kind_name(kind));
    }
  }

  // A body of PyTorch code, captured.
  Values captured_results() {
    CapturedRun run{.body = kernel_.body_,
                    .op = op_,
                    .arguments = arguments_,
                    .specs = kernel_.args_,
                    .returned = kernel_.returned_,
                    .call = call_,
                    .graph = graph(),
                    .read = [this](size_t tensor) { return read_tensor(tensor); }};
    run.seed = scalar_param(static_cast<size_t>(call_.random), DType::U64);
    run.offset = scalar_param(static_cast<size_t>(call_.random) + 1, DType::U64);
    Values results = run();
    written_tensors_ = std::move(run.written);
    captured_strides_ = std::move(run.strides);
    for (const auto& [value, constant] : run.constants) {
      params_.push_back(
          {runtime::Param::From::Constant, static_cast<int>(plan_->plan.constants.size()), constant->type()});
      plan_->plan.constants.push_back(constant);
    }
    plan_->random_count = run.random_count;
    plan_->note = std::move(run.note);
    return results;
  }

  // Whether a tensor of the call is an out= argument, which takes on the size of the result.
  bool is_out(int tensor) const {
    return op_.schema().arguments()[arguments_of_tensors()[static_cast<size_t>(tensor)]].is_out();
  }

  void place_results(Values& results) {
    const std::vector<at::Tensor> expected = expected_results();
    if (!meta_.known) {
      // Without a meta kernel the graph's own types count.
    } else if (results.size() != expected.size()) {
      internal(text("gives ", results.size(), " results, PyTorch expects ", expected.size()));
    }
    const size_t writes = written_tensors_.size();
    if (results.size() < writes) internal("has fewer results than tensors it writes to");
    const size_t fresh = results.size() - writes;
    const bool list = kernel_.returned_.size() == 1 && kernel_.returned_[0] < 0 &&
                      op_.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
    for (size_t i = 0; i < fresh; ++i) {
      place_fresh(results[i], meta_.known ? expected[i] : at::Tensor(), list);
    }
    for (size_t i = 0; i < writes; ++i) place_write(results[fresh + i], written_tensors_[i]);
  }

  void place_fresh(Value v, const at::Tensor& meta, bool in_list) {
    ResultSpec spec;
    spec.to = ResultSpec::To::Fresh;
    spec.list = in_list ? 0 : -1;
    if (v.node() == nullptr) {
      plan_->results.push_back(spec);
      return;
    }
    const Type expected =
        meta.defined() ? Type{dtype_of(meta.scalar_type()), Dims(meta.sizes().begin(), meta.sizes().end())} : v.type();
    const bool loose = kernel_.def_.options.loose_meta && v.type() != expected;
    if (meta.defined() && !loose) {
      if (v.type() != expected) internal("gives " + to_string(v.type()) + ", PyTorch expects " + to_string(expected));
      spec.strides.assign(meta.strides().begin(), meta.strides().end());
    } else if (const size_t at = plan_->results.size(); at < captured_strides_.size()) {
      spec.strides.assign(captured_strides_[at].begin(), captured_strides_[at].end());
    }
    spec.sizes.assign(v.dims().begin(), v.dims().end());
    spec.dtype = scalar_type_of(v.dtype());
    std::vector<int64_t> strides(spec.strides.begin(), spec.strides.end());
    v = to_storage_order(v, strides);
    spec.strides.assign(strides.begin(), strides.end());
    spec.program_result = add_result(v);
    plan_->results.push_back(spec);
  }

  void place_write(Value v, int tensor) {
    ResultSpec spec;
    const TensorArg& arg = call_.tensors[static_cast<size_t>(tensor)];
    if (v.node() != nullptr && arg.tensor && !kernel_.def_.options.overlap_ok)
      at::assert_no_internal_overlap(*arg.tensor);
    if (v.node() == nullptr || !arg.tensor) {  // unchanged, or an optional argument that isn't there
      plan_->results.push_back(spec);
      return;
    }
    spec.to = ResultSpec::To::Write;
    spec.tensor = tensor;
    const lowering::View view = view_of(arg);
    if (v.dims() != view.sizes && is_out(tensor)) {
      plan_->resizes.emplace_back(tensor, v.dims());
      return;
    }
    if (v.dims() != view.sizes)
      internal("writes " + to_string(v.type()) + " into a tensor of " + to_string(Type{view.dtype, view.sizes}));
    TORCH_CHECK(!kernel_.def_.options.exact_out || v.dtype() == view.dtype, op_.schema().name().substr(6), " expects ",
                scalar_type_of(v.dtype()), " tensor out, got: ", arg.tensor->scalar_type());
    // What a lowering means to convert it has converted; what is left is PyTorch's in-place and out= rule.
    TORCH_CHECK(c10::canCast(scalar_type_of(v.dtype()), arg.tensor->scalar_type()), "result type ",
                scalar_type_of(v.dtype()), " can't be cast to the desired output type ", arg.tensor->scalar_type());
    v = lowering::cast(v, view.dtype);
    // Two tensors written by one call may share a storage: the second builds on the first.
    for (auto& [slot, value] : written_) {
      if (slot != arg.slot) continue;
      value = lowering::write(value, view, digits_of(arg, static_cast<size_t>(tensor)), v);
      spec.program_result = result_of_[slot];
      results_[static_cast<size_t>(spec.program_result)] = value;
      plan_->results.push_back(spec);
      return;
    }
    const bool whole = lowering::covers(*arg.type, view) && arg.tensor->storage_offset() == 0;
    if (whole && arg.access == lowering::Access::Whole && !view.conj && !view.neg) {
      // The slot takes on the written shape and dtype. Where the old value is an operand of that size, its shape stays:
      // its memory can carry the new one, and the next call has the same key.
      for (const auto& [slot, base] : bases_) {
        if (slot == arg.slot && base.dtype() == v.dtype() && base.numel() == v.numel())
          v = hlo::reshape(v, base.dims());
      }
    } else if (whole) {
      Value placeholder = hlo::full(graph(), *arg.type, 0);
      v = lowering::write(placeholder, view, {}, v);
    } else {
      v = lowering::write(base_of(static_cast<size_t>(tensor)), view, digits_of(arg, static_cast<size_t>(tensor)), v);
    }
    spec.program_result = add_result(v);
    written_.emplace_back(arg.slot, v);
    result_of_[arg.slot] = spec.program_result;
    // The old value's memory can carry the new one.
    for (const auto& [slot, base] : bases_) {
      if (slot == arg.slot && base.type() == v.type()) alias_.emplace_back(base, spec.program_result);
    }
    plan_->results.push_back(spec);
  }

  // Checks of integers come before the operator. Of others the offenders are one more result, the last.
  void place_checks() {
    std::vector<lowering::RuntimeCheck> early;
    for (lowering::RuntimeCheck& check : info_.checks)
      (of_integers(check.offender) ? early : plan_->checks).push_back(std::move(check));
    for (lowering::RuntimeCheck& check : plan_->checks)
      check.values = {};  // others may meet them: only the offender counts
    if (!plan_->checks.empty()) add_result(offenders(plan_->checks));
    if (!early.empty())
      plan_->early = early_checks(graph(), params_, plan_->operands, plan_->plan.constants, std::move(early));
  }

  int add_result(Value v) {
    results_.push_back(v);
    return static_cast<int>(results_.size()) - 1;
  }

  void finish() {
    runtime::Plan& plan = plan_->plan;
    graph().set_results(results_);
    plan_->operands = keep_used(graph(), params_, plan_->operands, plan);
    hlo::BoundsOf bounds_of(graph());
    for (const Value& v : results_) {
      // Only integers are worth it: a mask is no index.
      if (auto origin = v.dtype() == DType::PRED ? std::nullopt : origin_of(bounds_of(v)))
        plan.origins.emplace_back(static_cast<int>(plan.results.size()), std::move(*origin));
      plan.results.push_back(runtime::intern(v.type()));
      plan.result_bytes += v.type().bytes();
    }
    const Values& parameters = graph().body().arguments();
    for (const auto& [base, result] : alias_) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].same(base) || results_[static_cast<size_t>(result)].same(base)) continue;
        graph().alias(static_cast<int>(i), result);
        plan.donated.push_back(static_cast<int>(i));
      }
    }
    const std::vector<bool> in_stages = hlo::read_in_stages(graph());
    for (size_t i = 0; i < plan.params.size(); ++i) {
      if (plan.params[i].from != runtime::Param::From::Scalar) plan.in_stages.push_back(in_stages[i]);
    }
    TPU_LOG(3, plan.name, "\n", hlo::print_short(graph()));
    if (!kernel_.body_) plan_->random_count = info_.random_count;
  }

  const OpKernel& kernel_;
  const c10::OperatorHandle& op_;
  const Call& call_;
  c10::ArrayRef<c10::IValue> arguments_;
  std::unique_ptr<OpPlan> plan_ = std::make_unique<OpPlan>();
  MetaResult meta_;
  lowering::CallInfo info_;
  bool wide_ = false;
  std::vector<runtime::Param> params_;
  std::vector<std::pair<runtime::Slot*, Value>> bases_;
  std::unordered_map<size_t, Values> digits_;
  std::vector<std::vector<int64_t>> captured_strides_;
  std::vector<int> written_tensors_;
  Values results_;
  std::vector<std::pair<runtime::Slot*, Value>> written_;
  std::unordered_map<runtime::Slot*, int> result_of_;
  std::vector<std::pair<Value, int>> alias_;
};

std::unique_ptr<OpPlan> build_plan(const OpKernel& kernel, const c10::OperatorHandle& op,
                                   const torch::jit::Stack& stack, const Call& call) {
  return PlanBuilder(kernel, op, stack, call).build();
}

}  // namespace tpu::aten
