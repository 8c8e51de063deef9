// SPDX-License-Identifier: Apache-2.0
#include "aten/early_checks.h"

#include <algorithm>
#include <unordered_set>

#include "aten/captured_control.h"
#include "aten/kernel.h"
#include "hlo/inline.h"
#include "runtime/capture.h"
#include "runtime/executor.h"

namespace tpu::aten {

using hlo::Value;
using hlo::Values;
using lowering::RuntimeCheck;
using runtime::Param;

bool of_integers(Value v) {
  std::vector<const hlo::Node*> todo{v.node()};
  std::unordered_set<const hlo::Node*> seen;
  while (!todo.empty()) {
    const hlo::Node* node = todo.back();
    todo.pop_back();
    if (!seen.insert(node).second) continue;
    if (node->name.empty()) {
      const hlo::DType t = node->results[0].dtype;
      if (!hlo::is_integer(t) && t != hlo::DType::PRED) return false;
    }
    // Their regions read values that are no operands.
    if (hlo::has_open_regions(*node)) return false;
    for (Value operand : node->operands) todo.push_back(operand.node());
  }
  return true;
}

Value offenders(const std::vector<RuntimeCheck>& checks) {
  Values out;
  for (const RuntimeCheck& check : checks) out.push_back(hlo::reshape(check.offender, {1}));
  return hlo::concat(out, 0);
}

std::optional<runtime::Origin> origin_of(const hlo::Bounds& bounds) {
  if (!bounds.known) return std::nullopt;
  return runtime::Origin{bounds.parameters, {bounds.low, bounds.high}, {bounds.fits_low, bounds.fits_high}};
}

std::vector<int> keep_used(hlo::Graph& graph, const std::vector<Param>& params, const std::vector<int>& tensors,
                           runtime::Plan& plan) {
  const std::vector<bool> used = graph.used_parameters();
  std::vector<int> operands;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!used[i]) continue;
    Param param = params[i];
    if (param.from == Param::From::Operand) {
      operands.push_back(tensors[static_cast<size_t>(param.index)]);
      param.index = static_cast<int>(operands.size()) - 1;
    }
    plan.params.push_back(param);
  }
  graph.drop_parameters(used);
  return operands;
}

std::unique_ptr<EarlyChecks> early_checks(hlo::Graph& graph, const std::vector<Param>& params,
                                          const std::vector<int>& tensors,
                                          const std::vector<runtime::ValueRef>& constants,
                                          std::vector<RuntimeCheck> checks) {
  auto early = std::make_unique<EarlyChecks>();
  runtime::Plan& plan = early->plan;
  plan.constants = constants;
  plan.name = "check_values";  // the same for all operators: equal checks are one program
  plan.graph = std::make_unique<hlo::Graph>();
  Values wanted = {offenders(checks)}, arguments;
  for (const RuntimeCheck& check : checks) wanted.push_back(check.values ? check.values : wanted[0]);
  for (Value p : graph.body().arguments()) arguments.push_back(plan.graph->parameter(p.type()));
  graph.set_results(wanted);
  wanted = hlo::inline_graph(*plan.graph, graph, arguments);
  plan.graph->set_results({wanted[0]});
  early->operands = keep_used(*plan.graph, params, tensors, plan);
  plan.results = {runtime::intern(wanted[0].type())};
  plan.result_bytes = wanted[0].type().bytes();
  hlo::BoundsOf bounds_of(*plan.graph);
  for (size_t i = 0; i < checks.size(); ++i)
    early->origins.push_back(checks[i].values ? origin_of(bounds_of(wanted[i + 1])) : std::nullopt);
  for (RuntimeCheck& check : checks) check.values = {};  // of a graph that isn't theirs any more
  early->checks = std::move(checks);
  return early;
}

namespace {

// The checks for the graph that is being captured. Where the checked values come from one tensor, the range of that is
// what counts in the graph, too.
std::vector<RuntimeCheck> in_capture(const EarlyChecks& early, std::span<const runtime::Operand> operands) {
  std::vector<RuntimeCheck> checks = early.checks;
  for (size_t i = 0; i < checks.size(); ++i) {
    RuntimeCheck& check = checks[i];
    const auto& origin = early.origins[i];
    if (!origin || origin->params.size() != 1 || check.outside) continue;
    const Param& param = early.plan.params[static_cast<size_t>(origin->params[0])];
    const bool others_fine = origin->others.low > origin->others.high || origin->others.within(check.low, check.high);
    if (param.from != Param::From::Operand || !others_fine) continue;
    const Value v = runtime::Capture::current()->value_of(operands[static_cast<size_t>(param.index)].value);
    if (&v.region() != &v.graph().body()) continue;
    check.values = v;
    check.low = std::max(check.low, origin->fits.low);
    check.high = std::min(check.high, origin->fits.high);
  }
  return checks;
}

}  // namespace

void judge(EarlyChecks& early, Call& call) {
  c10::SmallVector<runtime::Operand, 8> operands = operands_of(early.operands, call);
  const std::span<runtime::Operand> given{operands.data(), operands.size()};
  const std::span<const runtime::Scalar> scalars{call.scalars.data(), call.scalars.size()};
  runtime::ValueRef found;
  if (runtime::Capture::current()) {
    runtime::launch(early.plan, call.device, given, scalars, {&found, 1});
    captured_checks(found, in_capture(early, given));
    return;
  }
  bool fine = true;
  for (size_t i = 0; i < early.checks.size() && fine; ++i) {
    const RuntimeCheck& check = early.checks[i];
    if (!early.origins[i]) {
      fine = false;
      break;
    }
    const runtime::Range range = runtime::range_of(*early.origins[i], early.plan, given, scalars);
    fine = check.outside ? range.high < check.low || range.low > check.high : range.within(check.low, check.high);
  }
  if (fine) return;
  runtime::launch_now(early.plan, call.device, given, scalars, {&found, 1});
  raise_for_offenders(early.checks, found);
}

void raise_for_offenders(const std::vector<RuntimeCheck>& checks, const runtime::ValueRef& value) {
  std::vector<int64_t> given(checks.size());
  runtime::download(value, given.data());
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] != lowering::kNoOffender) throw Error(checks[i].kind, checks[i].message(given[i]));
  }
}

}  // namespace tpu::aten
