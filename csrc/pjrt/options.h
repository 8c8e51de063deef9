// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tpu::pjrt {

using Option = std::variant<std::string, int64_t, bool, float, std::vector<int64_t>>;

// The part of xla.CompileOptionsProto that we set.
struct CompileOptions {
  int64_t device_ordinal = -1;
  int num_replicas = 1;
  int num_partitions = 1;
  bool portable = true;  // runs on whichever device execute() names
  bool use_spmd = false;
  // XLA flags for this program, such as {"xla_cpu_enable_fast_math", false}.
  std::vector<std::pair<std::string, Option>> env_overrides;
  // Device ids, [replica][partition] in row-major order; empty: the plugin's choice.
  std::vector<int64_t> device_assignment;
};

std::string serialize(const CompileOptions& options);

}  // namespace tpu::pjrt
