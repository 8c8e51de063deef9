// SPDX-License-Identifier: Apache-2.0
#include "aten/engine.h"

#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "runtime/device.h"

namespace tpu::aten {
namespace {

struct Access : torch::autograd::Engine {
  static auto& queues(torch::autograd::Engine& engine) { return engine.*(&Access::device_ready_queues_); }
};

}  // namespace

void add_autograd_workers() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  auto& queues = Access::queues(engine);
  for (auto i = static_cast<int>(queues.size()); i < runtime::device_count(); ++i) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    std::thread(&torch::autograd::Engine::thread_init, &engine, i, queues.back(), /*should_increment=*/false).detach();
  }
}

}  // namespace tpu::aten
