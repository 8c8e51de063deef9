// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hlo/graph.h"
#include "runtime/plan.h"
#include "runtime/value.h"

namespace tpu::runtime {

struct Operand;

// Launches that don't run but are put into a graph: how a PyTorch decomposition or a compiled
// function becomes one program. Values made while a capture is active are placeholders without a
// buffer; reading one on the host throws. Active until destroyed.
class Capture {
 public:
  // OwnThread: launches of the thread that made it. AllThreads: of every thread that has none of its
  // own, so that autograd's threads are captured too; no other may launch meanwhile.
  enum class Reach { OwnThread, AllThreads };
  // Captures into `graph`. `seed` and `offset` (rank-0 U64) are what random operators start from.
  Capture(hlo::Graph& graph, int device, hlo::Value seed, hlo::Value offset, Reach reach = Reach::OwnThread);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  static Capture* current();  // for this thread; null when none

  ValueRef placeholder(hlo::Value value);
  ValueRef zeros(const hlo::Type& type);
  // The graph's value for `value`; a value from before the capture becomes a constant operand.
  hlo::Value value_of(const ValueRef& value);

  void launch(Plan& plan, std::span<Operand> operands, std::span<const Scalar> scalars, std::span<ValueRef> results);

  // Philox counters for one random operator: returns where they start.
  uint64_t reserve(uint64_t count);
  uint64_t reserved() const { return reserved_; }

  // Values from outside, in the order of their parameters.
  const std::vector<std::pair<hlo::Value, ValueRef>>& constants() const { return constants_; }

 private:
  hlo::Graph& graph_;
  int device_;
  hlo::Value seed_, offset_;
  uint64_t reserved_ = 0;
  std::unordered_map<const DeviceValue*, std::pair<ValueRef, hlo::Value>> values_;
  std::vector<std::pair<hlo::Value, ValueRef>> constants_;
  Reach reach_;
  Capture* outer_;
};

}  // namespace tpu::runtime
