// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.h"

#include "hlo/graph.h"

namespace tpu::runtime {
namespace {

std::string identifier(const std::string& name) {
  std::string out;
  for (char c : name.starts_with("aten::") ? name.substr(6) : name) {
    out += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return out.empty() ? "main" : out;
}

}  // namespace

Program& Plan::program() {
  if (Program* ready = program_if_ready()) return *ready;
  std::lock_guard lock(mutex_);
  if (Program* ready = program_if_ready()) return *ready;
  Program& found = find_program(hlo::print_mlir(*graph, identifier(name)), name, line);
  program_.store(&found, std::memory_order_release);
  return found;
}

}  // namespace tpu::runtime
