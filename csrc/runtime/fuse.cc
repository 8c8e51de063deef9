// SPDX-License-Identifier: Apache-2.0
#include "runtime/fuse.h"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "hlo/inline.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/scalar.h"
#include "runtime/stream.h"

namespace tpu::runtime {
namespace {

constexpr size_t kMostSteps = 1024;               // of one program: compile time grows with it
constexpr size_t kAnchor = 8;                     // steps by which a graph's beginning is recognised
constexpr size_t kShortest = 64;                  // no cut by repetition before that many steps
constexpr int64_t kLarge = 1 << 19;               // bytes of a value that is not worth computing twice
constexpr size_t kRemembered = 16;                // graphs that a new one is compared with, to tell why it is one
constexpr int kStorm = 32;                        // graphs of known operators that are worth a warning
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of results that are deferred

struct KeyHash {
  size_t operator()(const Hash128& key) const { return static_cast<size_t>(key.lo()); }
};

}  // namespace

// What is deferred on one device, in order.
class FusedGraph {
 public:
  void record(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
              std::span<ValueRef> results) {
    std::lock_guard lock(mutex_);
    device_ = device;
    Step step{&plan, operands_.size(), scalars_.size(), results_.size()};
    for (const Param& param : plan.params) {
      switch (param.from) {
        case Param::From::Operand: {
          const ValueRef& value = operands[static_cast<size_t>(param.index)].value;
          value->check();
          TPU_CHECK(value->type() == param.type, plan.name,
                    ": another thread changed a tensor's shape during the call");
          operands_.push_back(value);
          break;
        }
        case Param::From::Constant: operands_.push_back(plan.constants[static_cast<size_t>(param.index)]); break;
        case Param::From::Scalar: scalars_.push_back(scalars[static_cast<size_t>(param.index)]); break;
      }
    }
    for (size_t i = 0; i < results.size(); ++i) {
      ValueRef value(new DeviceValue(plan.results[i], device));
      value->set_pending();
      results_.push_back(value);
      results[i] = std::move(value);
    }
    if (!plan.origins.empty()) set_ranges(plan, operands, scalars, results);
    steps_.push_back(step);
    bytes_ += plan.result_bytes;
    cut_if_due();
  }

  // Runs everything; what comes next begins a new pattern.
  void flush() {
    std::lock_guard lock(mutex_);
    anchor_.clear();
    if (!steps_.empty()) run(steps_.size());
  }

 private:
  struct Step {
    Plan* plan;
    size_t operand, scalar, result;  // where its own begin
    bool dead = false;               // nobody wants its results
  };

  // A compiled cut.
  struct Compiled {
    Program* program = nullptr;
    std::vector<const Plan*> plans;             // of its steps
    std::vector<int> live;                      // as live_ was
    std::vector<int> inputs, scalars, outputs;  // of the program: positions in what the cut lists
    std::vector<const hlo::Type*> scalar_types;
    int64_t output_bytes = 0;
  };

  void cut_if_due() {
    const size_t n = steps_.size();
    if (anchor_.size() < kAnchor && n <= kAnchor && anchor_.size() + 1 == n) {
      anchor_.push_back(steps_.back().plan);
    } else if (n >= kShortest + kAnchor && anchor_.size() == kAnchor && steps_.back().plan == anchor_.back()) {
      const bool repeats = std::equal(anchor_.begin(), anchor_.end(), steps_.end() - kAnchor,
                                      [](const Plan* plan, const Step& step) { return plan == step.plan; });
      if (repeats) return run(n - kAnchor);
    }
    if (n >= kMostSteps || bytes_ > kMostBytes) run(n);
  }

  // Where a step's own begin; one past the last: where the lists end.
  Step at(size_t i) const {
    if (i < steps_.size()) return steps_[i];
    return {nullptr, operands_.size(), scalars_.size(), results_.size()};
  }

  // Runs the first `count` steps, as one program or several.
  void run(size_t count) {
    std::shared_ptr<const Error> failure;
    divide(count);
    size_t first = 0;
    for (const size_t last : ends_) {
      base_ = steps_[first];
      try {
        launch(first, last);
      } catch (const std::exception& error) {
        TPU_LOG(1, "a deferred graph of ", last - first, " operators failed and is run one by one: ", error.what());
        const auto found = run_each(first, last);
        if (!failure) failure = found;
      }
      // What later programs read, their steps hold.
      const Step end = at(last);
      std::fill(operands_.begin() + offset(base_.operand), operands_.begin() + offset(end.operand), ValueRef());
      std::fill(results_.begin() + offset(base_.result), results_.begin() + offset(end.result), ValueRef());
      first = last;
    }
    drop(count);
    if (failure) throw Error(*failure);
  }

  static ptrdiff_t offset(size_t i) { return static_cast<ptrdiff_t>(i); }

  void mark(DeviceValue& value, int id) const {
    value.epoch_ = epoch_;
    value.id_ = id;
    value.uses_ = 0;
  }

  // Finds the steps that nobody wants, and where the programs end. XLA's CPU compiler computes what several operators
  // read anew for each of them, with all that it is computed from. So a large value of that kind ends its program: it
  // is computed once, as in eager. Equal layers of a network become the same program, too.
  void divide(size_t count) {
    ++epoch_;
    for (size_t i = 0; i < count; ++i) {
      const Step next = at(i + 1);
      for (size_t k = steps_[i].operand; k < next.operand; ++k) {
        DeviceValue& value = *operands_[k].get();
        if (value.epoch_ != epoch_) mark(value, -1);
        ++value.uses_;
      }
      for (size_t r = steps_[i].result; r < next.result; ++r) mark(*results_[r].get(), static_cast<int>(i));
    }
    for (size_t i = count; i-- > 0;) {
      Step& step = steps_[i];
      const Step next = at(i + 1);
      step.dead = std::none_of(results_.begin() + offset(step.result), results_.begin() + offset(next.result),
                               [](const ValueRef& r) { return r->uses_ > 0 || r->owners() > 1; });
      for (size_t k = step.operand; step.dead && k < next.operand; ++k) {
        --operands_[k]->uses_;
        operands_[k] = {};
      }
    }
    ends_.clear();
    const bool divides = Runtime::get().is_cpu();
    int first = 0;
    for (size_t i = 0; divides && i < count; ++i) {
      const size_t end = at(i + 1).operand;
      for (size_t k = steps_[i].operand; k < end && !steps_[i].dead; ++k) {
        const DeviceValue& value = *operands_[k].get();
        const std::vector<bool>& in_stages = steps_[i].plan->in_stages;
        const int wanted = value.uses_ + (value.owners() > value.uses_ + 1 ? 1 : 0);
        const bool several = wanted > 1 || (!in_stages.empty() && in_stages[k - steps_[i].operand]);
        if (value.id_ < first || !several || value.type()->bytes() < kLarge) continue;
        first = static_cast<int>(i);
        ends_.push_back(i);
        break;
      }
    }
    ends_.push_back(count);
  }

  // One operator after the other, so that only what can't be computed is lost. Returns the first
  // failure, which names its operator; what depends on it fails alike.
  std::shared_ptr<const Error> run_each(size_t first_step, size_t last_step) {
    std::shared_ptr<const Error> first;
    for (size_t i = first_step; i < last_step; ++i) {
      const Step& step = steps_[i];
      const size_t end = at(i + 1).result;
      if (step.dead) continue;
      std::shared_ptr<const Error> failure;
      try {
        run_one(step, end);
      } catch (const std::exception& error) {
        const std::string where =
            step.plan->line.empty() ? step.plan->name : step.plan->name + " at " + step.plan->line;
        const auto* ours = dynamic_cast<const Error*>(&error);
        const ErrorKind kind = ours ? ours->kind() : ErrorKind::Internal;
        const bool told = first && std::string_view(error.what()) == first->what();
        failure = told ? first : std::make_shared<const Error>(kind, where + ": " + error.what());
        if (!first) first = failure;
      }
      for (size_t r = step.result; failure && r < end; ++r) results_[r]->fail(failure);
    }
    return first;
  }

  void run_one(const Step& step, size_t result_end) {
    args_.clear();
    held_.clear();
    size_t operand = step.operand, scalar = step.scalar;
    for (const Param& param : step.plan->params) {
      if (param.from == Param::From::Scalar) {
        push_scalar(scalars_[scalar++], param.type);
        continue;
      }
      DeviceValue& value = *operands_[operand++].get();
      value.check();
      args_.push_back(value.buffer().handle());
    }
    live_.clear();
    for (size_t r = step.result; r < result_end; ++r) live_.push_back(static_cast<int>(r - base_.result));
    const std::vector<int64_t> keep(step.plan->donated.begin(), step.plan->donated.end());
    start(step.plan->program(), step.plan->result_bytes, keep);
  }

  void drop(size_t count) {
    const Step end = at(count);
    const auto front = [](auto& list, size_t n) { list.erase(list.begin(), list.begin() + offset(n)); };
    front(steps_, count);
    front(operands_, end.operand);
    front(scalars_, end.scalar);
    front(results_, end.result);
    bytes_ = 0;
    for (Step& step : steps_) {
      step.operand -= end.operand;
      step.scalar -= end.scalar;
      step.result -= end.result;
      bytes_ += step.plan->result_bytes;
    }
  }

  void launch(size_t first, size_t last) {
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
          TPU_CHECK(value.ready_to_use(), step.plan->name, ": a value of a trace is used outside of it");
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
    if (live_.empty()) return;  // nobody wants any of it
    for (int r : live_) key.add(static_cast<uint64_t>(r));
    for (const DeviceValue* value : inputs_) key.add(value->owners() == value->uses_ ? 1u : 2u);

    Compiled& compiled = cache_[key];
    if (!compiled.program || compiled.program->generation != program_generation()) {
      compiled = {};
      try {
        compile(compiled, first, last);
      } catch (...) {
        cache_.erase(key);
        throw;
      }
    }
    execute(compiled);
  }

  void compile(Compiled& compiled, size_t first, size_t last) {
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

  // Why no earlier program would do: how the graph differs from the one it is like for longest.
  std::string reason(std::span<const Step> steps) {
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
      return text(graph, ": ",
                  steps[i].plan->reason.empty() ? named(steps[i].plan) + " is new" : steps[i].plan->reason);
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

  void execute(const Compiled& compiled) {
    args_.clear();
    held_.clear();
    for (int i : compiled.inputs) args_.push_back(inputs_[static_cast<size_t>(i)]->buffer().handle());
    for (size_t i = 0; i < compiled.scalars.size(); ++i)
      push_scalar(scalars_[base_.scalar + static_cast<size_t>(compiled.scalars[i])], compiled.scalar_types[i]);
    // Every aliased parameter is ours to give: it was so when the key was made.
    start(*compiled.program, compiled.output_bytes, {});
  }

  void push_scalar(const Scalar& scalar, const hlo::Type* type) {
    held_.push_back(scalar_value(scalar, type, device_));
    args_.push_back(held_.back()->buffer().handle());
  }

  // Launches `program` on args_; the results live_ get its outputs. `keep`: arguments whose memory must survive.
  void start(Program& program, int64_t output_bytes, const std::vector<int64_t>& keep) {
    memory::reserve(device_, output_bytes + program.temporary_bytes);
    Runtime& runtime = Runtime::get();
    outs_.assign(live_.size(), nullptr);
    pjrt::Event done;
    before_launch(device_);
    program.executable.execute(args_.data(), args_.size(), outs_.data(), runtime.device(device_), keep.data(),
                               keep.size(), &done);
    const PJRT_Api* api = runtime.client().api();
    for (size_t i = 0; i < live_.size(); ++i)
      results_[base_.result + static_cast<size_t>(live_[i])]->fill(pjrt::Buffer(api, outs_[i]));
    metrics::count_launch();
    after_launch(device_, std::move(done));
  }

  std::mutex mutex_;
  int device_ = 0;
  std::vector<Step> steps_;
  std::vector<ValueRef> operands_;  // of all steps: operands and constants in the order of their parameters
  std::vector<Scalar> scalars_;
  std::vector<ValueRef> results_;
  std::vector<const Plan*> anchor_;
  int64_t bytes_ = 0;
  uint64_t epoch_ = 0;
  // Of the program under way; kept for their memory.
  Step base_{};               // its first step: what it numbers begins there
  std::vector<size_t> ends_;  // of the programs of a cut: a step each, not included
  std::vector<DeviceValue*> inputs_;
  std::vector<int> live_;
  std::vector<PJRT_Buffer*> args_, outs_;
  std::vector<ValueRef> held_;
  std::unordered_map<Hash128, Compiled, KeyHash> cache_;
  std::deque<const Compiled*> recent_;   // what a new graph is compared with
  std::unordered_set<const Plan*> met_;  // in some compiled graph
  int unsteady_ = 0;                     // graphs compiled though all their plans were known
  int64_t transfers_ = -1;               // of the process, when the last of those was
};

namespace fuse {
namespace {

constexpr int kMostDevices = 1024;

// Leaked: tensors may outlive every static of ours at exit.
FusedGraph& graph_of(int device) {
  static auto* graphs = new std::array<std::atomic<FusedGraph*>, kMostDevices>{};
  std::atomic<FusedGraph*>& slot = (*graphs)[static_cast<size_t>(device)];
  FusedGraph* graph = slot.load(std::memory_order_acquire);
  if (!graph) {
    auto* fresh = new FusedGraph;
    if (slot.compare_exchange_strong(graph, fresh)) return *fresh;
    delete fresh;
  }
  return *graph;
}
std::atomic<bool> ever_recorded{false};

}  // namespace

void record(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
            std::span<ValueRef> results) {
  if (in_forked_child()) Runtime::get();  // throws; the lock may be held for ever here
  ever_recorded.store(true, std::memory_order_relaxed);
  graph_of(device).record(plan, device, operands, scalars, results);
}

void materialize_pending(const ValueRef& value) {
  if (value->pending()) flush(value->device());
  value->check();
}

void flush(int device) {
  if (!ever_recorded.load(std::memory_order_relaxed)) return;
  if (in_forked_child()) Runtime::get();
  graph_of(device).flush();
}

void flush_all() {
  if (!ever_recorded.load(std::memory_order_relaxed)) return;
  for (int device = 0; device < Runtime::get().device_count(); ++device) flush(device);
}

}  // namespace fuse
}  // namespace tpu::runtime
