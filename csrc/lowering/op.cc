// SPDX-License-Identifier: Apache-2.0
#include "lowering/op.h"

#include <algorithm>

namespace tpu::lowering {
namespace {

thread_local CallInfo* current_call = nullptr;

std::vector<OpDef>& mutable_registry() {
  static auto* defs = new std::vector<OpDef>;
  return *defs;
}

}  // namespace

bool Axes::has(int64_t d) const { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"Value",
                                           "optional<Value>",
                                           "Values",
                                           "vector<optional<Value>>",
                                           "Scale",
                                           "Dim",
                                           "Axes",
                                           "int64_t",
                                           "optional<int64_t>",
                                           "bool",
                                           "optional<bool>",
                                           "double",
                                           "optional<double>",
                                           "string",
                                           "optional<string>",
                                           "Dims",
                                           "optional<Dims>",
                                           "vector<double>",
                                           "optional<vector<double>>",
                                           "vector<bool>",
                                           "DType",
                                           "optional<DType>",
                                           "Literal",
                                           "Random",
                                           "Unused"};
  return kNames[static_cast<size_t>(kind)];
}

const CallInfo& call() {
  TPU_INTERNAL(current_call != nullptr, "a lowering ran outside of a call");
  return *current_call;
}

const Type& result_type(size_t i) {
  const auto& results = call().results;
  TPU_INTERNAL(i < results.size() && results[i], "no meta result ", i, " to take the type from");
  return *results[i];
}

bool is_weak(Value v) {
  const auto& weak = call().weak;
  return std::any_of(weak.begin(), weak.end(), [&](Value w) { return w.same(v); });
}

bool checks_values() { return call().target->checked_values; }

void check_range(Value values, int64_t low, int64_t high, ErrorKind kind, std::function<std::string(int64_t)> message) {
  if (!checks_values() || values.numel() == 0) return;
  Value v = convert(values, S64);
  Value offender = max(where(ge(v, low) & lt(v, high), kNoOffender, v), all_dims(v));
  current_call->checks.push_back({offender, kind, std::move(message), values, low, high - 1});
}

void check_no_zero(Value values, ErrorKind kind, std::string message) {
  if (!checks_values() || values.numel() == 0) return;
  check_not(any(eq(values, 0), all_dims(values)), kind, std::move(message));
  current_call->checks.back().values = values;
  current_call->checks.back().outside = true;
}

void check_not(Value bad, ErrorKind kind, std::string message) {
  if (!checks_values()) return;
  Value offender = where(bad, full(bad.graph(), {S64, {}}, 0), kNoOffender);
  current_call->checks.push_back({offender, kind, [message](int64_t) { return message; }});
}

CallScope::CallScope(CallInfo* info) : previous_(std::exchange(current_call, info)) {}
CallScope::~CallScope() { current_call = previous_; }

const std::vector<OpDef>& registry() { return mutable_registry(); }
void define(OpDef def) { mutable_registry().push_back(std::move(def)); }

}  // namespace tpu::lowering
