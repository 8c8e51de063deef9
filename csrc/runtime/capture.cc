// SPDX-License-Identifier: Apache-2.0
#include "runtime/capture.h"

#include <atomic>
#include <complex>
#include <utility>

#include "base/error.h"
#include "base/location.h"
#include "hlo/inline.h"
#include "hlo/math.h"
#include "runtime/executor.h"
#include "runtime/fuse.h"

namespace tpu::runtime {
namespace {

thread_local Capture* active = nullptr;
std::atomic<Capture*> shared{nullptr};

hlo::Literal literal_of(const Scalar& s) {
  switch (s.kind) {
    case Scalar::Kind::Bool: return hlo::Literal(s.i != 0);
    case Scalar::Kind::Float: return hlo::Literal(s.re);
    case Scalar::Kind::Complex: return hlo::Literal(std::complex<double>(s.re, s.im));
    case Scalar::Kind::Uint: return hlo::Literal(static_cast<uint64_t>(s.i));
    default: break;
  }
  return hlo::Literal(s.i);
}

}  // namespace

Capture::Capture(hlo::Graph& graph, int device, hlo::Value seed, hlo::Value offset, Reach reach)
    : graph_(graph), device_(device), seed_(seed), offset_(offset), reach_(reach) {
  outer_ = reach == Reach::AllThreads ? shared.exchange(this) : std::exchange(active, this);
}

Capture::~Capture() {
  if (reach_ == Reach::AllThreads)
    shared.store(outer_);
  else
    active = outer_;
}

Capture* Capture::current() { return active ? active : shared.load(std::memory_order_acquire); }

ValueRef Capture::placeholder(hlo::Value value) {
  ValueRef ref(new DeviceValue(intern(value.type()), device_));
  values_.emplace(ref.get(), std::make_pair(ref, value));
  return ref;
}

ValueRef Capture::zeros(const hlo::Type& type) { return placeholder(hlo::full(graph_, type, 0)); }

hlo::Value Capture::value_of(const ValueRef& value) {
  const auto found = values_.find(value.get());
  if (found != values_.end()) return found->second.second;
  fuse::materialize(value);
  TPU_CHECK(value->ready_to_use(),
            "a value of another trace is used; tensors made while a function is compiled must "
            "not be kept for later");
  hlo::Value parameter = graph_.parameter(*value->type());
  values_.emplace(value.get(), std::make_pair(value, parameter));
  constants_.emplace_back(parameter, value);
  return parameter;
}

uint64_t Capture::reserve(uint64_t count) { return std::exchange(reserved_, reserved_ + count); }

void Capture::launch(Plan& plan, std::span<Operand> operands, std::span<const Scalar> scalars,
                     std::span<ValueRef> results) {
  hlo::Values arguments;
  for (const Param& param : plan.params) {
    switch (param.from) {
      case Param::From::Operand: arguments.push_back(value_of(operands[static_cast<size_t>(param.index)].value)); break;
      case Param::From::Constant:
        arguments.push_back(value_of(plan.constants[static_cast<size_t>(param.index)]));
        break;
      case Param::From::Scalar: {
        const Scalar& s = scalars[static_cast<size_t>(param.index)];
        if (s.kind == Scalar::Kind::Seed) {
          arguments.push_back(seed_);
        } else if (s.kind == Scalar::Kind::Offset) {
          arguments.push_back(offset_ + static_cast<uint64_t>(s.i));
        } else {
          arguments.push_back(hlo::scalar(graph_, param.type->dtype, literal_of(s)));
        }
      }
    }
  }
  if (reach_ == Reach::AllThreads) graph_.set_origin(plan.name + " at " + user_location());
  const hlo::Values values = hlo::inline_graph(graph_, *plan.graph, arguments);
  for (size_t i = 0; i < results.size(); ++i) results[i] = placeholder(values[i]);
}

}  // namespace tpu::runtime
