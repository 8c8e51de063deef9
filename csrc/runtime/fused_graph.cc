// SPDX-License-Identifier: Apache-2.0
#include "runtime/fused_graph.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "runtime/device.h"
#include "runtime/repeats.h"

namespace tpu::runtime {
namespace {

constexpr size_t kMostSteps = 1024;               // of one program: compile time grows with it
constexpr size_t kAnchor = 8;                     // steps by which a graph's beginning is recognised
constexpr size_t kShortest = 64;                  // no cut by repetition before that many steps
constexpr size_t kPart = 128;                     // steps of alike parts that are programs of their own, at least
constexpr uint64_t kSoon = 8;                     // graphs after which a plan that comes again is settled, at most
constexpr size_t kMostKnown = 1 << 16;            // places where graphs are parted that are remembered
constexpr int64_t kLarge = 1 << 19;               // bytes of a value that is not worth computing twice
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of results that are deferred

}  // namespace

void FusedGraph::record(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
                        std::span<ValueRef> results) {
  std::lock_guard lock(mutex_);
  device_ = device;
  Step step{&plan, operands_.size(), scalars_.size(), results_.size()};
  for (const Param& param : plan.params) {
    switch (param.from) {
      case Param::From::Operand: {
        const ValueRef& value = operands[static_cast<size_t>(param.index)].value;
        value->check();
        TPU_CHECK(value->type() == param.type, plan.name, ": another thread changed a tensor's shape during the call");
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
  prefixes_.push_back(prefix_after(prefixes_.empty() ? prefix_ : prefixes_.back(), plan));
  bytes_ += plan.result_bytes;
  if (!cut_if_due()) start_early();
}

void FusedGraph::flush() {
  std::lock_guard lock(mutex_);
  anchor_.clear();
  if (!steps_.empty()) run(steps_.size());
}

bool FusedGraph::cut_if_due() {
  const size_t n = started_ + steps_.size();
  if (anchor_.size() < kAnchor && n <= kAnchor && anchor_.size() + 1 == n) {
    anchor_.push_back(steps_.back().plan);
  } else if (n >= kShortest + kAnchor && anchor_.size() == kAnchor && steps_.back().plan == anchor_.back()) {
    const bool repeats = std::equal(anchor_.begin(), anchor_.end(), steps_.end() - kAnchor,
                                    [](const Plan* plan, const Step& step) { return plan == step.plan; });
    if (repeats) return run(steps_.size() - kAnchor), true;
  }
  if (n < kMostSteps && bytes_ <= kMostBytes) return false;
  run(steps_.size(), Why::Full);
  return true;
}

void FusedGraph::start_early() {
  if (missed_ || steps_.size() <= kAnchor) return;
  const size_t count = steps_.size() - kAnchor;
  if (known_ends_.contains(prefixes_[count - 1])) run(count, Why::Early);
}

void FusedGraph::run(size_t count, Why why) {
  std::shared_ptr<const Error> failure;
  divide(count, why);
  size_t first = 0;
  for (const size_t last : ends_) {
    base_ = steps_[first];
    std::shared_ptr<const Error> found;
    try {
      if (!launch(first, last, why, found)) {
        missed_ = true;
        break;
      }
    } catch (const std::exception& error) {
      TPU_LOG(1, "a deferred graph of ", last - first, " operators failed and is run one by one: ", error.what());
      found = run_each(first, last);
    }
    if (!failure) failure = found;
    // What later programs read, their steps hold.
    const Step end = at(last);
    std::fill(operands_.begin() + offset(base_.operand), operands_.begin() + offset(end.operand), ValueRef());
    std::fill(results_.begin() + offset(base_.result), results_.begin() + offset(end.result), ValueRef());
    first = last;
  }
  drop(first, why);
  if (failure) throw Error(*failure);
}

void FusedGraph::divide(size_t count, Why why) {
  ++epoch_;
  for (size_t i = 0; i < count; ++i) {
    const Step next = at(i + 1);
    for (size_t k = steps_[i].operand; k < next.operand && !steps_[i].dead; ++k) {
      DeviceValue& value = *operands_[k].get();
      if (value.epoch_ != epoch_) mark(value, -1);
      ++value.uses_;
    }
    for (size_t r = steps_[i].result; r < next.result; ++r) mark(*results_[r].get(), static_cast<int>(i));
  }
  for (size_t i = count; i-- > 0;) {
    Step& step = steps_[i];
    if (step.dead) continue;  // since an early start that didn't come so far
    const Step next = at(i + 1);
    step.dead = std::none_of(results_.begin() + offset(step.result), results_.begin() + offset(next.result),
                             [](const ValueRef& r) { return r->uses_ > 0 || r->owners() > 1; });
    for (size_t k = step.operand; step.dead && k < next.operand; ++k) {
      --operands_[k]->uses_;
      operands_[k] = {};
    }
  }
  ends_.clear();
  const auto end_at = [&](size_t i) {
    if (i > 0 && (ends_.empty() || ends_.back() < i)) ends_.push_back(i);
  };
  const bool computes_anew = Runtime::get().is_cpu();
  size_t unsettled = 0;
  for (size_t i = 0; i < count; ++i) unsettled += !meet(*steps_[i].plan);
  // At an early start the rest of the graph isn't there to judge by.
  const bool apart = why != Why::Early && unsettled * 4 <= started_ + count;
  for (size_t i = 0; i < count; ++i) {
    const bool alone = apart && !steps_[i].plan->settled.load(std::memory_order_relaxed);
    if (alone || (i > 0 && known_ends_.contains(prefixes_[i - 1]))) end_at(i);
    if (computes_anew && reads_several_times(i, ends_.empty() ? 0 : ends_.back())) end_at(i);
    if (alone) end_at(i + 1);
  }
  end_at(count);
  if (why == Why::Early || !parted_.insert(prefixes_[count - 1]).second) return;
  if (known_ends_.size() + parted_.size() > kMostKnown) {
    known_ends_.clear();
    parted_.clear();
  }
  part_at_repeats(count);
  for (size_t i : ends_) {
    if (i < count) known_ends_.insert(prefixes_[i - 1]);
  }
}

bool FusedGraph::meet(Plan& plan) const {
  const uint64_t last = plan.last_graph.exchange(number_, std::memory_order_relaxed);
  if (last != 0 && last != number_ && number_ - last <= kSoon) plan.settled.store(true, std::memory_order_relaxed);
  return plan.settled.load(std::memory_order_relaxed);
}

bool FusedGraph::reads_several_times(size_t i, size_t first) const {
  if (steps_[i].dead) return false;
  const std::vector<bool>& in_stages = steps_[i].plan->in_stages;
  for (size_t k = steps_[i].operand; k < at(i + 1).operand; ++k) {
    const DeviceValue& value = *operands_[k].get();
    const int wanted = value.uses_ + (value.owners() > value.uses_ + 1 ? 1 : 0);
    const bool several = wanted > 1 || (!in_stages.empty() && in_stages[k - steps_[i].operand]);
    if (value.id_ >= static_cast<int>(first) && several && value.type()->bytes() >= kLarge) return true;
  }
  return false;
}

void FusedGraph::part_at_repeats(size_t count) {
  if (count < 2 * kPart) return;
  // Bytes that pass over from before a step: from the step that gives a value to the last that reads it.
  std::vector<int64_t> crossing(count + 1);
  std::unordered_set<const DeviceValue*> seen;
  std::vector<uint64_t> kinds(count);
  for (size_t i = count; i-- > 0;) {
    kinds[i] = kind_of(*steps_[i].plan) + steps_[i].dead;
    for (size_t k = steps_[i].operand; k < at(i + 1).operand && !steps_[i].dead; ++k) {
      const DeviceValue& value = *operands_[k].get();
      if (value.id_ < 0 || !seen.insert(&value).second) continue;
      crossing[static_cast<size_t>(value.id_) + 1] += value.type()->bytes();
      crossing[i + 1] -= value.type()->bytes();
    }
  }
  std::partial_sum(crossing.begin(), crossing.end(), crossing.begin());
  std::vector<size_t> all;
  size_t first = 0;
  for (size_t last : ends_) {
    const std::span<const uint64_t> part{kinds.data() + first, last - first};
    for (size_t i : runtime::part_at_repeats(part, {crossing.data() + first, part.size()}, kPart))
      all.push_back(first + i);
    all.push_back(last);
    first = last;
  }
  ends_ = std::move(all);
}

void FusedGraph::drop(size_t count, Why why) {
  const Step end = at(count);
  started_ += count;
  if (count > 0) prefix_ = prefixes_[count - 1];
  const auto front = [](auto& list, size_t n) { list.erase(list.begin(), list.begin() + offset(n)); };
  front(steps_, count);
  front(operands_, end.operand);
  front(scalars_, end.scalar);
  front(results_, end.result);
  front(prefixes_, count);
  bytes_ = 0;
  for (Step& step : steps_) {
    step.operand -= end.operand;
    step.scalar -= end.scalar;
    step.result -= end.result;
    bytes_ += step.plan->result_bytes;
  }
  if (why == Why::Early) return;
  // The graph is at its end; what is left begins the next.
  if (why == Why::Due) ++number_;
  started_ = 0;
  prefix_ = 0;
  missed_ = false;
  for (size_t i = 0; i < steps_.size(); ++i)
    prefixes_[i] = prefix_after(i ? prefixes_[i - 1] : prefix_, *steps_[i].plan);
}

}  // namespace tpu::runtime
