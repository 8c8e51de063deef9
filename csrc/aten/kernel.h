// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <forward_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "aten/call_note.h"
#include "aten/captured.h"
#include "aten/early_checks.h"
#include "lowering/op.h"
#include "lowering/view.h"
#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/slot.h"

namespace tpu::aten {

// What a schema argument is, as far as parsing it goes.
enum class Form : uint8_t { Tensor, TensorList, OptTensorList, Scalar, ScalarList, Other };

Form form_of(const c10::Argument& arg);

// The body of a captured operator did what a graph can't express.
struct TraceFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ArgSpec {
  lowering::Kind kind;
  Form form;
  bool written;  // results go to it
  bool hidden;   // not a parameter of the lowering: an out= argument
};

// How one result of a plan reaches PyTorch.
struct ResultSpec {
  enum class To : uint8_t { Nothing, Fresh, Write } to = To::Nothing;
  int program_result = -1;  // which result of the program; -1: an undefined tensor
  int tensor = -1;          // Write: position among the call's tensors
  c10::SmallVector<int64_t, 6> sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int list = -1;  // Fresh: schema return that is a list this belongs to
};

// A runtime plan plus what PyTorch has to be told of its results.
struct OpPlan {
  runtime::Plan plan;
  std::vector<int> operands;  // of the program: positions among the call's tensors
  std::vector<ResultSpec> results;
  // out= tensors whose size is wrong: position among the tensors and the size to take on.
  std::vector<std::pair<int, std::vector<int64_t>>> resizes;
  // Tensors on one storage, positions among the call's: one that is written to and another that is read.
  std::vector<std::pair<int, int>> overlaps;
  uint64_t random_count = 0;  // Philox counters that one call consumes
  // What the last result of the program, an S64 each, is judged by.
  std::vector<lowering::RuntimeCheck> checks;
  std::unique_ptr<EarlyChecks> early;
  std::shared_ptr<const void> note;  // what a captured body left for its caller
};

// A tensor argument of one call.
struct TensorArg {
  const at::Tensor* tensor = nullptr;  // null: None
  runtime::Slot* slot = nullptr;       // null: a host scalar
  const hlo::Type* type = nullptr;     // of the slot
  lowering::Access access = lowering::Access::Whole;
  bool identity = false;  // the slot's value as it is
  int scalar = -1;        // host scalar, or first digit of the offset
  int digits = 0;
};

// Everything known of one call after a walk over its arguments.
struct Call {
  int device = -1;
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  c10::SmallVector<TensorArg, 8> tensors;
  c10::SmallVector<runtime::Scalar, 8> scalars;
  c10::SmallVector<uint64_t, 64> key;
  hlo::Precision precision = hlo::Precision::HIGHEST;  // of float32 products
  int random = -1;                                     // position of seed and offset among the scalars
  std::optional<at::Generator> generator;
  std::vector<hlo::Literal> numbers;       // for Options.check
  std::forward_list<at::Tensor> uploaded;  // keeps CPU tensors moved to the device alive
};

// The one kernel: serves the functional, in-place and out= forms of every lowered operator.
class OpKernel final : public c10::OperatorKernel {
 public:
  // Throws tpu::Error naming file and line where the lowering and the schema disagree.
  // With a `body`, the operator is captured from PyTorch code instead of lowered.
  OpKernel(const lowering::OpDef& def, const c10::FunctionSchema& schema, bool named, TensorBody body = {});
  // What messages call the operator, a history that several kernels share, and what is fixed in this one.
  void describe(std::string shown, std::shared_ptr<CallHistory> history, std::vector<ArgumentNote> fixed);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // The same for a captured body that takes one list of the device's tensors and gives one, without a stack: `fresh`
  // gets the results. Returns the plan that served the call, which lives as long as the kernel.
  const OpPlan& call(const c10::OperatorHandle& op, c10::ArrayRef<at::Tensor> tensors,
                     c10::SmallVectorImpl<at::Tensor>& fresh);

 private:
  friend class PlanBuilder;
  bool mixes_devices(const torch::jit::Stack& stack) const;
  bool writes_twice(const torch::jit::Stack& stack) const;
  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, int depth);
  void launch(OpPlan& plan, Call& call, c10::SmallVectorImpl<runtime::ValueRef>& values) const;
  void parse(torch::jit::Stack* stack, Call& call) const;
  void parse_list(c10::ArrayRef<at::Tensor> tensors, Call& call) const;
  void parse_surroundings(Call& call) const;
  void find_device(torch::jit::Stack* stack, Call& call) const;
  void parse_tensor(const at::Tensor& tensor, const ArgSpec& spec, Call& call) const;
  void parse_static(const c10::IValue& value, lowering::Kind kind, Call& call) const;
  OpPlan* find(const Call& call, uint64_t hash);
  OpPlan* insert(const Call& call, uint64_t hash, std::unique_ptr<OpPlan> plan);
  // `arguments`: gives the call's stack; asked where there is no plan yet.
  OpPlan& plan_for(const c10::OperatorHandle& op, const Call& call,
                   c10::function_ref<const torch::jit::Stack&()> arguments);
  OpPlan& add_plan(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const Call& call, uint64_t hash);
  void run_with_masks(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void check_overlaps(const OpPlan& plan, const Call& call) const;
  static bool fresh_results(const OpPlan& plan, const Call& call, c10::ArrayRef<runtime::ValueRef> values,
                            c10::SmallVectorImpl<at::Tensor>& fresh);
  void deliver(OpPlan& plan, Call& call, c10::ArrayRef<runtime::ValueRef> values, torch::jit::Stack* stack) const;

  const lowering::OpDef& def_;
  TensorBody body_;
  std::string name_;   // "aten::add.out"
  std::string shown_;  // "aten::add"
  std::vector<ArgSpec> args_;
  std::vector<int> writes_;    // schema arguments that results are written to, in order
  std::vector<int> returned_;  // a schema return each: the argument it aliases, or -1

  struct Entry {
    c10::SmallVector<uint64_t, 64> key;
    std::unique_ptr<OpPlan> plan;
  };
  std::atomic_flag busy_;
  std::unordered_multimap<uint64_t, Entry> plans_;
  std::shared_ptr<CallHistory> history_ = std::make_shared<CallHistory>();
  std::vector<ArgumentNote> fixed_;
};

// A tensor of the device over `storage`.
at::Tensor make_tensor(c10::Storage storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                       c10::ScalarType dtype);

// The values of these tensors of the call, with their slots.
c10::SmallVector<runtime::Operand, 8> operands_of(const std::vector<int>& tensors, const Call& call);

// Launches `call` with `plan`; `values` gets the program's results.
void launch_plan(OpPlan& plan, Call& call, c10::SmallVectorImpl<runtime::ValueRef>& values);

// The slot's value; a slot never written to becomes zeros first.
runtime::ValueRef value_of(runtime::Slot& slot);

}  // namespace tpu::aten
