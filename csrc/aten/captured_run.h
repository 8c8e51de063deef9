// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "aten/kernel.h"
#include "runtime/capture.h"

namespace tpu::aten {

// The dimensions in the order that a storage of these strides holds them; empty: as they stand. Strides
// that leave gaps, overlap or are missing become contiguous ones.
hlo::Dims storage_order(const hlo::Dims& sizes, std::vector<int64_t>& strides);
// The elements in that order.
hlo::Value to_storage_order(hlo::Value v, std::vector<int64_t>& strides);

// The graph's value of a tensor that captured code made or changed. Throws TraceFailed for one that is
// not on the device.
hlo::Value captured_value(hlo::Graph& graph, const at::Tensor& t, runtime::Capture& capture);

// Called by a TensorBody: what the plan that is being built keeps for its callers.
void attach_to_plan(std::shared_ptr<const void> note);

// One run of a TensorBody on placeholders, its launches captured into `graph`.
struct CapturedRun {
  const TensorBody& body;
  const c10::OperatorHandle& op;
  c10::ArrayRef<c10::IValue> arguments;
  const std::vector<ArgSpec>& specs;
  const std::vector<int>& returned;  // a schema return each: the argument it aliases, or -1
  const Call& call;
  hlo::Graph& graph;
  std::function<hlo::Value(size_t)> read;  // a tensor argument's value in the graph
  hlo::Value seed = {}, offset = {};       // of the generator, rank-0 U64

  // What the run found out.
  std::vector<int> written = {};                   // tensors that may be written to
  std::vector<std::vector<int64_t>> strides = {};  // of the fresh results
  std::vector<std::pair<hlo::Value, runtime::ValueRef>> constants = {};
  uint64_t random_count = 0;
  std::shared_ptr<const void> note = {};

  // Fresh results, then one for each of `written` (null: unchanged). Throws TraceFailed.
  hlo::Values operator()();

  at::Tensor placeholder_of(size_t tensor, runtime::Capture& capture) const;
};

}  // namespace tpu::aten
