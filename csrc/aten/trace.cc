// SPDX-License-Identifier: Apache-2.0
#include "aten/trace.h"

#include <algorithm>
#include <atomic>

#include "aten/captured_run.h"
#include "aten/storage.h"

namespace tpu::aten {
namespace {

std::atomic<Trace*> active{nullptr};

runtime::Slot& slot_of(const c10::Storage& storage) { return aten::slot_of(*storage.unsafeGetStorageImpl()); }

}  // namespace

Trace::Trace(const lowering::Target& target, int device) : device_(device), target_(target) {
  Trace* none = nullptr;
  TPU_CHECK(active.compare_exchange_strong(none, this), "another program is being traced");
  seed_ = graph_.parameter({hlo::DType::U64, {}});
  offset_ = graph_.parameter({hlo::DType::U64, {}});
  capture_ = std::make_unique<runtime::Capture>(graph_, device, seed_, offset_, runtime::Capture::Reach::AllThreads);
  scope_ = std::make_unique<CaptureScope>(*capture_, graph_, device, seed_, offset_);
}

Trace::~Trace() {
  restore();
  scope_.reset();
  capture_.reset();
  active.store(nullptr);
}

Trace* Trace::current() { return active.load(std::memory_order_acquire); }

at::Tensor Trace::input(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  hlo::Dims logical(sizes.begin(), sizes.end());
  std::vector<int64_t> order = strides.vec();
  storage_order(logical, order);
  hlo::Value v = graph_.parameter({dtype_of(dtype), physical_dims(sizes, order)});
  parameters_.push_back(v);
  inputs_.push_back(make_tensor(make_storage(device_, capture_->placeholder(v)), sizes, order, 0, dtype));
  return inputs_.back();
}

void Trace::before_write(const c10::Storage& storage) {
  for (const Written& known : written_) {
    if (known.storage.is_alias_of(storage)) return;
  }
  runtime::ValueRef before = slot_of(storage).value();
  const bool is_input = std::any_of(inputs_.begin(), inputs_.end(),
                                    [&](const at::Tensor& t) { return t.storage().is_alias_of(storage); });
  // What the traced code made itself needs no care.
  if (is_input || (before && before->ready_to_use())) written_.push_back({storage, std::move(before)});
}

TracedProgram Trace::finish(const std::vector<at::Tensor>& outputs, const std::string& name) {
  hlo::Values results;
  for (const at::Tensor& t : outputs) results.push_back(captured_value(graph_, t, *capture_));
  std::vector<std::pair<hlo::Value, int>> aliases;
  for (const Written& w : written_) {
    hlo::Value before = capture_->value_of(w.before), after = capture_->value_of(slot_of(w.storage).value());
    if (after.same(before)) continue;
    if (after.type() == before.type()) aliases.emplace_back(before, static_cast<int>(results.size()));
    results.push_back(after);
  }
  graph_.set_results(results);
  graph_.drop_parameters(graph_.used_parameters());
  TracedProgram program;
  const hlo::Values& parameters = graph_.body().arguments();
  for (const auto& [before, result] : aliases) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].same(before)) continue;
      graph_.alias(static_cast<int>(i), result);
      ++program.donated;
    }
  }
  for (hlo::Value v : parameters) {
    program.inputs.push_back(v.type());
    const auto at = std::find_if(parameters_.begin(), parameters_.end(), [&](hlo::Value p) { return p.same(v); });
    program.input_of.push_back(at == parameters_.end() ? -1 : static_cast<int>(at - parameters_.begin()));
  }
  for (hlo::Value v : results) program.outputs.push_back(v.type());
  program.products = hlo::count_products(graph_);
  program.loops = hlo::find_loops(graph_, name);
  program.text = hlo::print_mlir(graph_, name);
  return program;
}

void Trace::restore() {
  for (const Written& w : written_) slot_of(w.storage).set(w.before);
  written_.clear();
}

}  // namespace tpu::aten
