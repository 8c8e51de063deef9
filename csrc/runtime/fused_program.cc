// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/log.h"
#include "hlo/inline.h"
#include "runtime/device.h"
#include "runtime/fused_graph.h"
#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/profile.h"
#include "runtime/scalar.h"
#include "runtime/stream.h"

namespace tpu::runtime {
namespace {

constexpr size_t kRemembered = 16;  // graphs that a new one is compared with, to tell why it is one
constexpr size_t kDearer = 4;  // a program of one operator takes as long to compile as so many more in a larger one
constexpr size_t kMostSeen = 1 << 16;  // keys that are remembered before they are compiled
constexpr int kStorm = 32;             // graphs of known operators that are worth a warning
constexpr const char* kEscaped = ": a value of a trace is used outside of it";

}  // namespace

bool FusedGraph::launch(size_t first, size_t last, Why why, std::shared_ptr<const Error>& failure) {
  if (const auto only = the_only_step(first, last)) {
    for (size_t k = steps_[*only].operand; k < at(*only + 1).operand; ++k) {
      operands_[k]->check();
      TPU_CHECK(operands_[k]->ready_to_use(), steps_[*only].plan->name, kEscaped);
    }
    run_one(steps_[*only], at(*only + 1).result);
    return true;
  }
  // Number the values: inputs by first use, results in order, from 0 on. Uses within the program are counted, so that
  // owners beyond them show who else wants a value.
  ++epoch_;
  Hash128 key;
  inputs_.clear();
  for (size_t i = first; i < last; ++i) {
    const Step& step = steps_[i];
    const Step next = at(i + 1);
    key.add(reinterpret_cast<uintptr_t>(step.plan) + step.dead);
    for (size_t k = step.operand; k < next.operand && !step.dead; ++k) {
      DeviceValue& value = *operands_[k].get();
      if (value.epoch_ != epoch_) {
        value.check();
        TPU_CHECK(value.ready_to_use(), step.plan->name, kEscaped);
        mark(value, -1 - static_cast<int>(inputs_.size()));
        inputs_.push_back(&value);
      }
      ++value.uses_;
      key.add(static_cast<uint64_t>(static_cast<int64_t>(value.id_)));
    }
    for (size_t r = step.result; r < next.result; ++r) mark(*results_[r].get(), static_cast<int>(r - base_.result));
  }
  live_.clear();
  for (size_t r = base_.result; r < at(last).result; ++r) {
    const DeviceValue& value = *results_[r].get();
    if (value.owners() > value.uses_ + 1) live_.push_back(static_cast<int>(r - base_.result));
  }
  if (live_.empty()) return true;  // nobody wants any of it
  for (int r : live_) key.add(static_cast<uint64_t>(r));
  for (const DeviceValue* value : inputs_) key.add(value->owners() == value->uses_ ? 1u : 2u);

  const auto found = cache_.find(key);
  const bool known = found != cache_.end() && found->second.program->generation == program_generation();
  if (!known && why == Why::Early) return false;
  if (seen_.size() > kMostSeen) seen_.clear();
  if (!known && seen_.try_emplace(key, number_).first->second == number_ && compiles_less_each(first, last)) {
    failure = run_each(first, last);
    return true;
  }
  Compiled& compiled = known ? found->second : cache_[key];
  if (!known) {
    compiled = {};
    try {
      compile(compiled, first, last);
    } catch (...) {
      cache_.erase(key);
      throw;
    }
  }
  execute(compiled);
  return true;
}

bool FusedGraph::compiles_less_each(size_t first, size_t last) const {
  std::unordered_set<const Plan*> missing;
  size_t live = 0;
  for (size_t i = first; i < last; ++i) {
    if (steps_[i].dead) continue;
    ++live;
    if (!steps_[i].plan->program_if_ready()) missing.insert(steps_[i].plan);
  }
  return missing.size() * kDearer < live;
}

std::optional<size_t> FusedGraph::the_only_step(size_t first, size_t last) const {
  std::optional<size_t> only;
  for (size_t i = first; i < last; ++i) {
    if (steps_[i].dead) continue;
    if (only) return std::nullopt;
    only = i;
  }
  return only;
}

void FusedGraph::compile(Compiled& compiled, size_t first, size_t last) {
  hlo::Graph graph;
  const size_t result_count = at(last).result - base_.result;
  hlo::Values inputs, scalars, results(result_count);
  std::vector<int> root(result_count, 0);  // the input that a result is the new version of: -1 - id
  for (const DeviceValue* value : inputs_) inputs.push_back(graph.parameter(*value->type()));
  std::vector<const hlo::Type*> scalar_types;
  for (size_t i = first; i < last; ++i) {
    for (const Param& param : steps_[i].plan->params) {
      if (param.from != Param::From::Scalar) continue;
      scalars.push_back(graph.parameter(*param.type));
      scalar_types.push_back(param.type);
    }
  }
  for (size_t i = first; i < last; ++i) {
    const Step& step = steps_[i];
    if (step.dead) continue;
    size_t operand = step.operand, scalar = step.scalar - base_.scalar;
    const size_t result = step.result - base_.result;
    hlo::Values arguments;
    std::vector<int> ids;
    for (const Param& param : step.plan->params) {
      if (param.from == Param::From::Scalar) {
        arguments.push_back(scalars[scalar++]);
        ids.push_back(0);
        continue;
      }
      const int id = operands_[operand++]->id_;
      arguments.push_back(id < 0 ? inputs[static_cast<size_t>(-1 - id)] : results[static_cast<size_t>(id)]);
      ids.push_back(id < 0 ? id : root[static_cast<size_t>(id)]);
    }
    const hlo::Values values = hlo::inline_graph(graph, *step.plan->graph, arguments);
    for (size_t j = 0; j < values.size(); ++j) results[result + j] = values[j];
    for (const auto& [from, to] : step.plan->graph->aliases())
      root[result + static_cast<size_t>(to)] = ids[static_cast<size_t>(from)];
  }

  hlo::Values outputs;
  for (int r : live_) {
    outputs.push_back(results[static_cast<size_t>(r)]);
    compiled.output_bytes += outputs.back().type().bytes();
  }
  graph.set_results(outputs);
  const std::vector<bool> used = graph.used_parameters();
  std::vector<int> position(inputs.size(), -1);
  int next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!used[i]) continue;
    compiled.inputs.push_back(static_cast<int>(i));
    position[i] = next++;
  }
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (!used[inputs.size() + i]) continue;
    compiled.scalars.push_back(static_cast<int>(i));
    compiled.scalar_types.push_back(scalar_types[i]);
  }
  graph.drop_parameters(used);
  std::vector<bool> given(inputs.size());
  for (size_t i = 0; i < live_.size(); ++i) {
    const int from = root[static_cast<size_t>(live_[i])];
    if (from >= 0) continue;
    const auto at = static_cast<size_t>(-1 - from);
    const DeviceValue& value = *inputs_[at];
    // An input handed through as it is stays the input's.
    if (given[at] || position[at] < 0 || value.owners() != value.uses_ || outputs[i].type() != *value.type() ||
        outputs[i].same(inputs[at]))
      continue;
    given[at] = true;
    graph.alias(position[at], static_cast<int>(i));
  }
  const std::span<const Step> steps{steps_.data() + first, last - first};
  const std::string name = "fused_" + std::to_string(steps.size());
  TPU_LOG(2, "deferred graph of ", steps.size(), " operators, ", compiled.inputs.size(), " inputs, ", live_.size(),
          " results");
  compiled.program = &find_program(hlo::print_mlir(graph, name), name, steps[0].plan->line, reason(steps));
  for (const Step& step : steps) {
    compiled.plans.push_back(step.plan);
    met_.insert(step.plan);
  }
  compiled.live = live_;
  recent_.push_back(&compiled);
  if (recent_.size() > kRemembered) recent_.pop_front();
}

std::string FusedGraph::reason(std::span<const Step> steps) {
  const size_t count = steps.size();
  const auto named = [](const Plan* plan) {
    return plan->line.empty() ? plan->name : plan->name + " at " + plan->line;
  };
  const Compiled* nearest = nullptr;
  size_t alike = 0;
  for (auto it = recent_.rbegin(); it != recent_.rend(); ++it) {
    const std::vector<const Plan*>& plans = (*it)->plans;
    size_t n = 0;
    while (n < count && n < plans.size() && plans[n] == steps[n].plan) ++n;
    // Of equally long beginnings the graph of equal length, then the latest.
    if (nearest && (n < alike || (n == alike && (nearest->plans.size() == count || plans.size() != count)))) continue;
    nearest = *it;
    alike = n;
  }
  const std::string graph = text("a new fused graph of ", count, " operators");
  for (size_t i = 0; i < count; ++i) {
    if (met_.contains(steps[i].plan)) continue;
    return text(graph, ": ", steps[i].plan->reason.empty() ? named(steps[i].plan) + " is new" : steps[i].plan->reason);
  }
  // Nothing is new but the graph itself.
  std::string why;
  if (!nearest || alike == 0) {
    why = text("none begins with ", named(steps[0].plan));
  } else if (alike < count && alike < nearest->plans.size()) {
    why = text("operator ", alike, " is ", named(steps[alike].plan), " where an earlier graph has ",
               named(nearest->plans[alike]));
  } else if (alike < count) {
    why = text("it goes on where an earlier graph ended, after ", named(steps[alike - 1].plan));
  } else if (alike < nearest->plans.size()) {
    why = text("it ends after ", named(steps[alike - 1].plan), ", where an earlier graph goes on to ",
               named(nearest->plans[alike]));
  } else if (nearest->live != live_) {
    why = "the same operators as an earlier graph, but other results are still held";
  } else {
    why = "the same operators as an earlier graph, but connected otherwise, or holding other inputs";
  }
  if (metrics::transfers() != transfers_) ++unsteady_;
  transfers_ = metrics::transfers();
  if (unsteady_ == kStorm) {
    log::warn(text("DEFER_AND_FUSE has compiled ", kStorm,
                   " graphs of operators that were all known, the last because ", why,
                   ". Fused graphs end where a value is read: read at the same places in each step, or call "
                   "torch.tpu.synchronize() at the end of a step. Where the program takes another way each time, "
                   "EagerMode.DEFER_NEVER is faster. torch.tpu.compile_report() lists what was compiled and why"));
  }
  return text(graph, ": ", why);
}

void FusedGraph::execute(const Compiled& compiled) {
  args_.clear();
  held_.clear();
  for (int i : compiled.inputs) args_.push_back(inputs_[static_cast<size_t>(i)]->buffer().handle());
  for (size_t i = 0; i < compiled.scalars.size(); ++i)
    push_scalar(scalars_[base_.scalar + static_cast<size_t>(compiled.scalars[i])], compiled.scalar_types[i]);
  // Every aliased parameter is ours to give: it was so when the key was made.
  start(*compiled.program, compiled.output_bytes, {}, compiled.plans);
}

std::shared_ptr<const Error> FusedGraph::run_each(size_t first_step, size_t last_step) {
  std::shared_ptr<const Error> first;
  for (size_t i = first_step; i < last_step; ++i) {
    const Step& step = steps_[i];
    const size_t end = at(i + 1).result;
    if (step.dead) continue;
    std::shared_ptr<const Error> failure;
    try {
      run_one(step, end);
    } catch (const std::exception& error) {
      const std::string where = step.plan->line.empty() ? step.plan->name : step.plan->name + " at " + step.plan->line;
      const auto* ours = dynamic_cast<const Error*>(&error);
      const ErrorKind kind = ours ? ours->kind() : ErrorKind::Internal;
      const bool told = first && std::string_view(error.what()) == first->what();
      failure = told ? first : std::make_shared<const Error>(kind, where + ": " + error.what());
      if (!first) first = failure;
    }
    for (size_t r = step.result; failure && r < end; ++r) results_[r]->fail(failure);
    // Memory is given back as in eager: who reads a result later on holds it.
    std::fill(operands_.begin() + offset(step.operand), operands_.begin() + offset(at(i + 1).operand), ValueRef());
    std::fill(results_.begin() + offset(step.result), results_.begin() + offset(end), ValueRef());
  }
  return first;
}

void FusedGraph::run_one(const Step& step, size_t result_end) {
  args_.clear();
  held_.clear();
  std::vector<int> owners;
  size_t operand = step.operand, scalar = step.scalar;
  for (const Param& param : step.plan->params) {
    if (param.from == Param::From::Scalar) {
      push_scalar(scalars_[scalar++], param.type);
      owners.push_back(0);
      continue;
    }
    DeviceValue& value = *operands_[operand++].get();
    value.check();
    owners.push_back(value.owners());
    args_.push_back(value.buffer().handle());
  }
  live_.clear();
  for (size_t r = step.result; r < result_end; ++r) live_.push_back(static_cast<int>(r - base_.result));
  std::vector<int64_t> keep;
  for (int i : step.plan->donated) {
    if (owners[static_cast<size_t>(i)] != 1) keep.push_back(i);
  }
  const Plan* plan = step.plan;
  start(step.plan->program(), step.plan->result_bytes, keep, {&plan, 1});
}

void FusedGraph::push_scalar(const Scalar& scalar, const hlo::Type* type) {
  held_.push_back(scalar_value(scalar, type, device_));
  args_.push_back(held_.back()->buffer().handle());
}

// An operator's own name, or "fused add.Tensor, mul.Tensor and 3 more".
static std::string profile_name(std::span<const Plan* const> plans) {
  if (plans.size() == 1) return plans[0]->name;
  constexpr size_t kNamed = 4;
  std::string out = "fused ";
  for (size_t i = 0; i < std::min(plans.size(), kNamed); ++i) {
    const std::string& name = plans[i]->name;
    out += (i > 0 ? ", " : "") + name.substr(name.starts_with("aten::") ? 6 : 0);
  }
  return plans.size() > kNamed ? out + " and " + std::to_string(plans.size() - kNamed) + " more" : out;
}

void FusedGraph::start(Program& program, int64_t output_bytes, const std::vector<int64_t>& keep,
                       std::span<const Plan* const> plans) {
  memory::reserve(device_, output_bytes + program.temporary_bytes);
  Runtime& runtime = Runtime::get();
  outs_.assign(live_.size(), nullptr);
  pjrt::Event done;
  const int64_t queued = profile::on() ? profile::now() : 0;
  before_launch(device_);
  program.executable.execute(args_.data(), args_.size(), outs_.data(), runtime.device(device_), keep.data(),
                             keep.size(), &done);
  const PJRT_Api* api = runtime.client().api();
  for (size_t i = 0; i < live_.size(); ++i)
    results_[base_.result + static_cast<size_t>(live_[i])]->fill(pjrt::Buffer(api, outs_[i]));
  metrics::count_launch();
  if (queued != 0) [[unlikely]]
    profile::launched(profile_name(plans), device_, queued, done);
  after_launch(device_, std::move(done));
}

}  // namespace tpu::runtime
