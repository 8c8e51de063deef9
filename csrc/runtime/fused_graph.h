// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/value.h"

namespace tpu::runtime {

// What is deferred on one device, in order (fuse.h). fused_graph.cc says when it is cut and where its programs end,
// fused_program.cc compiles and launches them.
class FusedGraph {
 public:
  void record(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
              std::span<ValueRef> results);
  // Runs everything; what comes next begins a new pattern.
  void flush();

 private:
  struct Step {
    Plan* plan;
    size_t operand, scalar, result;  // where its own begin
    bool dead = false;               // nobody wants its results
  };
  enum class Why : uint8_t {
    Due,    // a cut that the program asks for: what comes next is another graph
    Full,   // the graph has grown to a limit, and goes on
    Early,  // the device may start on the beginning
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
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return static_cast<size_t>(key.lo()); }
  };

  bool cut_if_due();
  // Where a graph is known to be parted, the device gets what stands before while the rest is recorded; but only
  // programs that are there: how the graph goes on is not known, and what is still held may not be held at its end.
  // The last steps are kept: Python still holds what it is about to drop, and they may begin a repetition.
  void start_early();
  // Runs the first `count` steps, as one program or several; early: as many of them as are known programs.
  void run(size_t count, Why why = Why::Due);
  void drop(size_t count, Why why);

  // Finds the steps that nobody wants, and where the programs end:
  // - XLA's CPU compiler computes what several operators read anew for each of them, with all that it is computed from.
  //   So a large value of that kind ends its program: it is computed once, as in eager.
  // - Parts that are alike, as the layers of a network, become the same program.
  // - A plan that isn't settled is a program of its own, where few aren't: where a size is another in each step, as
  //   the length of a cache is, what stands between the plans that it concerns stays the same.
  void divide(size_t count, Why why);
  // Notes that `plan` is part of this graph; whether it is settled.
  bool meet(Plan& plan) const;
  // Whether step i reads a large value of the program that began at `first`, and others read it, too.
  bool reads_several_times(size_t i, size_t first) const;
  // Adds ends where the first `count` steps repeat.
  void part_at_repeats(size_t count);

  // Launches these steps. False where their program is not there and `why` is Early. Throws where the program
  // fails; `failure`: of an operator, where they are run one by one.
  bool launch(size_t first, size_t last, Why why, std::shared_ptr<const Error>& failure);
  // Whether the steps one by one need far less compiled than as one program. They are run so in the first graph
  // that they are met in: what never comes again is not worth more.
  bool compiles_less_each(size_t first, size_t last) const;
  // The one step of these that anybody wants, if it is one: it is the program that eager has.
  std::optional<size_t> the_only_step(size_t first, size_t last) const;
  void compile(Compiled& compiled, size_t first, size_t last);
  // Why no earlier program would do: how the graph differs from the one it is like for longest.
  std::string reason(std::span<const Step> steps);
  void execute(const Compiled& compiled);
  // One operator after the other, so that only what can't be computed is lost. Returns the first
  // failure, which names its operator; what depends on it fails alike.
  std::shared_ptr<const Error> run_each(size_t first_step, size_t last_step);
  void run_one(const Step& step, size_t result_end);
  void push_scalar(const Scalar& scalar, const hlo::Type* type);
  // Launches `program` on args_; the results live_ get its outputs. `keep`: arguments whose memory must survive.
  // `plans`: of its operators, for a profile.
  void start(Program& program, int64_t output_bytes, const std::vector<int64_t>& keep,
             std::span<const Plan* const> plans);

  // Of the plans of a graph so far, in order; those that are not settled stand for all of their operator.
  static uint64_t prefix_after(uint64_t prefix, const Plan& plan) {
    uint64_t h = (prefix ^ kind_of(plan)) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
  }
  static uint64_t kind_of(const Plan& plan) {
    if (plan.settled.load(std::memory_order_relaxed)) [[likely]]
      return reinterpret_cast<uintptr_t>(&plan);
    return std::hash<std::string>{}(plan.name);
  }
  // Where a step's own begin; one past the last: where the lists end.
  Step at(size_t i) const {
    if (i < steps_.size()) return steps_[i];
    return {nullptr, operands_.size(), scalars_.size(), results_.size()};
  }
  static ptrdiff_t offset(size_t i) { return static_cast<ptrdiff_t>(i); }
  void mark(DeviceValue& value, int id) const {
    value.epoch_ = epoch_;
    value.id_ = id;
    value.uses_ = 0;
  }

  std::mutex mutex_;
  int device_ = 0;
  std::vector<Step> steps_;
  std::vector<ValueRef> operands_;  // of all steps: operands and constants in the order of their parameters
  std::vector<Scalar> scalars_;
  std::vector<ValueRef> results_;
  std::vector<uint64_t> prefixes_;  // after each step
  std::vector<const Plan*> anchor_;
  int64_t bytes_ = 0;
  // What of the graph has been started early: steps, and the prefix after them. The first program that was not there
  // ends that.
  size_t started_ = 0;
  uint64_t prefix_ = 0;
  bool missed_ = false;
  uint64_t epoch_ = 0;
  uint64_t number_ = 1;  // of the graph
  // Of the program under way; kept for their memory.
  Step base_{};               // its first step: what it numbers begins there
  std::vector<size_t> ends_;  // of the programs of a cut: a step each, not included
  std::vector<DeviceValue*> inputs_;
  std::vector<int> live_;
  std::vector<PJRT_Buffer*> args_, outs_;
  std::vector<ValueRef> held_;
  std::unordered_map<Hash128, Compiled, KeyHash> cache_;
  std::unordered_map<Hash128, uint64_t, KeyHash> seen_;  // keys of programs that were wanted, and in which graph first
  std::deque<const Compiled*> recent_;                   // what a new graph is compared with
  std::unordered_set<const Plan*> met_;                  // in some compiled graph
  std::unordered_set<uint64_t> known_ends_;              // prefixes after which a program ends
  std::unordered_set<uint64_t> parted_;                  // of graphs that have been looked at for repeats
  int unsteady_ = 0;                                     // graphs compiled though all their plans were known
  int64_t transfers_ = -1;                               // of the process, when the last of those was
};

}  // namespace tpu::runtime
