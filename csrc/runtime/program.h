// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "pjrt/executable.h"
#include "pjrt/options.h"

namespace tpu::runtime {

// A compiled module. Shared by all plans that print the same text.
struct Program {
  Hash128 key;
  std::string name;
  pjrt::Executable executable;
  int64_t temporary_bytes = 0;
  uint64_t generation = 0;
  int64_t number = 0;  // in the order in which they were loaded
};
// Of the programs that are loaded, in their order.
struct ProgramMemory {
  std::string name;
  int64_t number;
  pjrt::MemoryStats memory;
};
std::vector<ProgramMemory> program_memory();

// Programs of an earlier generation are unloaded: find_program() loads them again.
uint64_t program_generation();
int64_t loaded_programs();
// Unloads every program: each takes memory maps, of which a process has some 65,000. No launch may be
// under way in another thread.
void unload_programs();

// Finds the program of `mlir` in memory, then on disk, else compiles it and stores it. Two threads
// that want the same program compile it once. Lives for the process. Throws tpu::Error.
// `line`: of the user's Python; `reason`: why no program that was there would do.
Program& find_program(const std::string& mlir, std::string_view name, std::string_view line, std::string_view reason);

// XLA options, such as {"xla_cpu_enable_fast_math", true}, for the programs that this thread finds while it lives.
class OptionsScope {
 public:
  using Options = std::vector<std::pair<std::string, pjrt::Option>>;
  explicit OptionsScope(const Options& options);
  ~OptionsScope();
  OptionsScope(const OptionsScope&) = delete;
  OptionsScope& operator=(const OptionsScope&) = delete;

 private:
  const Options* outer_;
};

// Programs that this process needed, for those who want to look at each: a queue that grows from
// start_watching() on. `line`: of the user's Python.
struct SeenProgram {
  std::string name, line, mlir;
};
void start_watching();
bool watching();
// The next one; waits up to `seconds`. Thread-safe.
std::optional<SeenProgram> next_seen(double seconds);

}  // namespace tpu::runtime
