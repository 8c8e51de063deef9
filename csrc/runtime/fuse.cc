// SPDX-License-Identifier: Apache-2.0
#include "runtime/fuse.h"

#include <array>
#include <atomic>

#include "runtime/device.h"
#include "runtime/fused_graph.h"

namespace tpu::runtime::fuse {
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

}  // namespace tpu::runtime::fuse
