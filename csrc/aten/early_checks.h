// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hlo/bounds.h"
#include "lowering/op.h"
#include "runtime/plan.h"

namespace tpu::aten {

struct Call;

// Checks that need no more than integers: judged before the operator is launched, by a program of their
// own where what is known of the integers isn't enough. So the operator itself is not waited for.
struct EarlyChecks {
  runtime::Plan plan;
  std::vector<int> operands;  // of the program: positions among the call's tensors
  std::vector<lowering::RuntimeCheck> checks;
  std::vector<std::optional<runtime::Origin>> origins;  // of the checked values, a check each
};

// Whether a value depends on integers and bools alone, and on no loop.
bool of_integers(hlo::Value v);

// What a program gives for `checks`: an S64 each.
hlo::Value offenders(const std::vector<lowering::RuntimeCheck>& checks);

// The checks as a program of their own. `graph` computes their offenders; `params` are its parameters, `tensors` what
// their operands are among the call's tensors, `constants` the values that it was captured with.
std::unique_ptr<EarlyChecks> early_checks(hlo::Graph& graph, const std::vector<runtime::Param>& params,
                                          const std::vector<int>& tensors,
                                          const std::vector<runtime::ValueRef>& constants,
                                          std::vector<lowering::RuntimeCheck> checks);

// Throws the error of the first check that the call doesn't pass; under a capture the checks become the capture's.
void judge(EarlyChecks& early, Call& call);
// The same for offenders that a program has given.
void raise_for_offenders(const std::vector<lowering::RuntimeCheck>& checks, const runtime::ValueRef& value);

// Drops the parameters that no result of `graph` needs, as they would still be uploaded and kept alive. The others
// become `plan`'s; returns the tensors behind them.
std::vector<int> keep_used(hlo::Graph& graph, const std::vector<runtime::Param>& params,
                           const std::vector<int>& tensors, runtime::Plan& plan);

std::optional<runtime::Origin> origin_of(const hlo::Bounds& bounds);

}  // namespace tpu::aten
