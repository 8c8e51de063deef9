// SPDX-License-Identifier: Apache-2.0
#include "aten/captured.h"

#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_set>

#include "aten/error.h"
#include "aten/fallback.h"
#include "aten/kernel.h"
#include "aten/register.h"
#include "base/log.h"

namespace tpu::aten {
namespace {

using lowering::Kind;

class DecomposedKernel final : public c10::OperatorKernel {
 public:
  DecomposedKernel(const c10::FunctionSchema& schema, TensorBody body)
      : kernel_(captured_definition(schema), schema, false, std::move(body)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    // A decomposition may come back to its own operator: PyTorch's references end in it.
    if (std::find(tracing.begin(), tracing.end(), this) != tracing.end()) {
      throw TraceFailed(c10::toString(op.operator_name()) + " is its own decomposition");
    }
    if (!failed_) {
      struct Entered {
        explicit Entered(const DecomposedKernel* kernel) { tracing.push_back(kernel); }
        ~Entered() { tracing.pop_back(); }
      } entered(this);
      try {
        kernel_(op, keys, stack);
        return;
      } catch (const TraceFailed& failure) {
        TPU_LOG(2, c10::toString(op.operator_name()), ": PyTorch's decomposition can't be captured: ", failure.what());
        failed_ = true;
      }
    }
    fall_back(op, stack);
  }

 private:
  static thread_local std::vector<const DecomposedKernel*> tracing;
  OpKernel kernel_;
  std::atomic<bool> failed_{false};
};

thread_local std::vector<const DecomposedKernel*> DecomposedKernel::tracing;

}  // namespace

const lowering::OpDef& captured_definition(const c10::FunctionSchema& schema) {
  auto* def = new lowering::OpDef;
  def->name = c10::toString(schema.operator_name());
  def->file = "decomposition";
  def->line = 0;
  def->options.host_tensors = true;
  for (const auto& arg : schema.arguments()) {
    switch (form_of(arg)) {
      case Form::Tensor: def->kinds.push_back(Kind::OptValue); break;
      case Form::TensorList: def->kinds.push_back(Kind::Values); break;
      case Form::OptTensorList: def->kinds.push_back(Kind::OptValues); break;
      default: def->kinds.push_back(Kind::OptDouble);  // any static kind: the key takes what is there
    }
  }
  return *def;
}

void register_decompositions(const std::vector<std::string>& operators, TensorBody body) {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  std::unordered_set<std::string> lowered;
  for (const auto& entry : registered()) lowered.insert(entry.overload);
  for (const std::string& full : operators) {
    if (lowered.contains(full)) continue;
    const size_t dot = full.find('.');
    auto handle = c10::Dispatcher::singleton().findSchema(
        {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    library->impl(full.substr(full.find("::") + 2).c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DecomposedKernel>(handle->schema(), body)));
  }
}

}  // namespace tpu::aten
