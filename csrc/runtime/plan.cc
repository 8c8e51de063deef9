// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.h"

#include <algorithm>

#include "hlo/graph.h"
#include "runtime/executor.h"

namespace tpu::runtime {
namespace {

std::string identifier(const std::string& name) {
  std::string out;
  for (char c : name.starts_with("aten::") ? name.substr(6) : name) {
    out += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return out.empty() ? "main" : out;
}

Range range_of(const Param& param, const Plan& plan, std::span<const Operand> operands,
               std::span<const Scalar> scalars) {
  const auto index = static_cast<size_t>(param.index);
  switch (param.from) {
    case Param::From::Operand: return operands[index].value->range();
    case Param::From::Constant: return plan.constants[index]->range();
    case Param::From::Scalar: break;
  }
  const Scalar& s = scalars[index];
  if (s.kind == Scalar::Kind::Bool || s.kind == Scalar::Kind::Int) return {s.i, s.i};
  return {};
}

}  // namespace

Range range_of(const Origin& origin, const Plan& plan, std::span<const Operand> operands,
               std::span<const Scalar> scalars) {
  Range all = origin.others;
  for (int i : origin.params) {
    const Range range = range_of(plan.params[static_cast<size_t>(i)], plan, operands, scalars);
    if (!range.within(origin.fits.low, origin.fits.high)) return {};
    all = {std::min(all.low, range.low), std::max(all.high, range.high)};
  }
  return all;
}

void set_ranges(const Plan& plan, std::span<const Operand> operands, std::span<const Scalar> scalars,
                std::span<ValueRef> results) {
  for (const auto& [result, origin] : plan.origins)
    results[static_cast<size_t>(result)]->set_range(range_of(origin, plan, operands, scalars));
}

Program& Plan::program() {
  if (Program* ready = program_if_ready()) return *ready;
  std::lock_guard lock(mutex_);
  if (Program* ready = program_if_ready()) return *ready;
  Program& found = find_program(hlo::print_mlir(*graph, identifier(name)), name, line,
                                reason.empty() ? "it is needed for the first time" : reason);
  program_.store(&found, std::memory_order_release);
  return found;
}

}  // namespace tpu::runtime
