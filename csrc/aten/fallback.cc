// SPDX-License-Identifier: Apache-2.0
#include "aten/fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_set>

#include "base/env.h"
#include "runtime/capture.h"
#include "runtime/metrics.h"

namespace tpu::aten {
namespace {

bool first_time(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* seen = new std::unordered_set<std::string>;
  std::lock_guard lock(*mutex);
  return seen->insert(name).second;
}

}  // namespace

FallbackPolicy fallback_policy() {
  const std::string text = env::get_string("TORCH_TPU_CPU_FALLBACK");
  if (text == "allow") return FallbackPolicy::Allow;
  if (text == "error") return FallbackPolicy::Error;
  return FallbackPolicy::Warn;
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey kernel) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(runtime::Capture::current() == nullptr, "operator '", name,
                              "' runs on the CPU and can't be part of a compiled program");
  TORCH_CHECK_NOT_IMPLEMENTED(fallback_policy() != FallbackPolicy::Error, "operator '", name,
                              "' is not implemented for TPU; set TORCH_TPU_CPU_FALLBACK=allow to run it on the CPU");
  runtime::metrics::count_fallback(name);
  if (fallback_policy() == FallbackPolicy::Warn && first_time(name)) {
    TORCH_WARN("operator '", name, "' is not implemented for TPU and runs on the CPU, with copies both ways; ",
               "torch.tpu.fallback_stats() counts the calls, TORCH_TPU_CPU_FALLBACK=allow|error sets what happens");
  }
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false, kernel);
}

static void fall_back_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) { fall_back(op, stack); }

void register_fallback() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back_dense>());
}

}  // namespace tpu::aten
