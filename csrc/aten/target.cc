// SPDX-License-Identifier: Apache-2.0
#include "aten/target.h"

#include <atomic>
#include <utility>

#include "base/env.h"
#include "runtime/device.h"

namespace tpu::aten {
namespace {

std::atomic<const lowering::Target*> scoped{nullptr};
thread_local const lowering::Target* of_thread = nullptr;

const lowering::Target& own_target() {
  static const lowering::Target& target = [&]() -> const lowering::Target& {
    const std::string topology = env::get_string("TORCH_TPU_AOT_TOPOLOGY");
    if (!topology.empty()) return lowering::tpu_target(topology.substr(0, topology.find(':')));
    return runtime::Runtime::get().is_cpu() ? lowering::cpu_target() : lowering::tpu_target("TPU");
  }();
  return target;
}

}  // namespace

const lowering::Target* scoped_target() { return of_thread ? of_thread : scoped.load(std::memory_order_acquire); }

const lowering::Target& target() {
  const lowering::Target* set = scoped_target();
  return set ? *set : own_target();
}

TargetScope::TargetScope(const lowering::Target& target) : outer_(scoped.exchange(&target)) {}
TargetScope::~TargetScope() { scoped.store(outer_); }

AnySizeScope::AnySizeScope() : outer_(std::exchange(of_thread, &lowering::any_size_target(target()))) {}
AnySizeScope::~AnySizeScope() { of_thread = outer_; }

}  // namespace tpu::aten
