// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "hlo/graph.h"
#include "lowering/op.h"
#include "runtime/capture.h"

namespace tpu::aten {

// Control flow in code that is being captured: one StableHLO operation each, whose regions hold what
// the functions launch. All throw TraceFailed where no capture of this thread is active.
using Tensors = std::vector<at::Tensor>;
using TensorFunction = std::function<Tensors(const Tensors&)>;

// Whether this thread's code is being captured, so that the functions below work.
bool captures_control();

// A launch with checks of values was captured: `offenders` (S64) is what `checks` judge. The plan that is being
// built checks them then; those inside of a region are dropped, as a TPU does.
void captured_checks(const runtime::ValueRef& offenders, const std::vector<lowering::RuntimeCheck>& checks);

// One check of what is being captured, by an offender of its graph.
void add_captured_check(lowering::RuntimeCheck check);

// if: both functions get `operands` and must give tensors of equal types.
Tensors captured_if(const at::Tensor& condition, const TensorFunction& then, const TensorFunction& otherwise,
                    const Tensors& operands);

// while: `state` goes through `body` as long as `condition` gives true.
Tensors captured_while(const Tensors& state, const TensorFunction& condition, const TensorFunction& body);

// A while over dimension 0 of `xs`: body(carry..., slices of xs...) gives the next carry and the rows of
// the results. Returns the last carry and the stacked rows.
Tensors captured_scan(const Tensors& carry, const Tensors& xs, const TensorFunction& body);

// What random operators of the capture start from now on: S64[2], seed and offset.
at::Tensor captured_random_state();
// Runs `function` with random operators starting from such a state.
Tensors captured_with_random_state(const at::Tensor& state, const TensorFunction& function, const Tensors& inputs);

// While it lives, this is what the functions above find on its thread.
class CaptureScope {
 public:
  CaptureScope(runtime::Capture& capture, hlo::Graph& graph, int device, hlo::Value seed, hlo::Value offset);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  runtime::Capture& capture;
  hlo::Graph& graph;
  int device;
  hlo::Value seed, offset;
  std::vector<lowering::RuntimeCheck>* checks = nullptr;  // where those of launches go, if not to the plan being built

 private:
  CaptureScope* outer_;
};

// The innermost of this thread; throws TraceFailed where no capture of it is active.
CaptureScope& capture_scope();

}  // namespace tpu::aten
