// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

// Every environment variable torch_tpu reads is a row of kSwitches; nothing else calls getenv.
// docs/environment.md is printed from it.
namespace tpu::env {

enum class Kind { Int, Bool, String, Choice };

struct Switch {
  const char* name;
  Kind kind;
  const char* fallback;  // the default, as the user would write it
  const char* help;
  int64_t low = 0, high = INT64_MAX;  // Int: the bounds
  const char* choices = "";           // Choice: a|b|c
};

inline constexpr Switch kSwitches[] = {
    {"TPU_LIBRARY_PATH", Kind::String, "",
     "path of the PJRT plugin; empty: libtpu on a TPU host, else the XLA CPU plugin"},
    {"TORCH_TPU_VIRTUAL_DEVICES", Kind::Int, "1", "number of devices the CPU plugin presents", 1, 1024},
    {"TORCH_TPU_LAUNCH_BLOCKING", Kind::Bool, "0",
     "wait for each operator, so that an error is raised at its own line"},
    {"TORCH_TPU_DEFER_AND_FUSE", Kind::Bool, "0", "collect operators into graphs and run them as fused programs"},
    {"TORCH_TPU_CACHE_DIR", Kind::String, "", "folder of compiled programs; empty: ~/.cache/torch_tpu"},
    {"TORCH_TPU_CACHE", Kind::Bool, "1", "keep compiled programs on disk"},
    {"TORCH_TPU_CACHE_SIZE_MB", Kind::Int, "2048", "bound of the folder of compiled programs", 0, 1 << 30},
    {"TORCH_TPU_CPU_FALLBACK", Kind::Choice, "warn", "what happens when an operator can only run on the CPU", 0, 0,
     "warn|allow|error"},
    {"TORCH_TPU_DEBUG", Kind::Int, "0",
     "1: programs compiled; 2: and plan misses, fallbacks; 3: and graphs; 4: and each launch", 0, 4},
    {"TORCH_TPU_DUMP", Kind::String, "", "folder that receives the text and options of each program compiled"},
    {"TORCH_TPU_LOG", Kind::Choice, "none", "compiles: a line for each program compiled, with the reason", 0, 0,
     "none|compiles"},
    {"TORCH_TPU_LOG_FILE", Kind::String, "", "file that log lines are appended to; empty: stderr"},
    {"TORCH_TPU_PROGRESS", Kind::Bool, "1", "on a terminal: a line while a compilation takes more than two seconds"},
    {"TORCH_TPU_AOT_TOPOLOGY", Kind::String, "",
     "TPU topology, such as v6e:2x2: every program that runs is also compiled for it, in the background"},
    {"TORCH_TPU_MEMORY_LIMIT_MB", Kind::Int, "0",
     "memory of each device; 0: the host's, shared among the virtual devices", 0, 1 << 30},
};

// A row found by name. A name that is no row, or a row of another kind, does not compile.
template <Kind... Allowed>
class Row {
 public:
  consteval Row(const char* name) : row_(find(name)) {}
  const Switch& operator*() const { return *row_; }

 private:
  static consteval const Switch* find(std::string_view name) {
    for (const Switch& row : kSwitches)
      if (row.name == name && ((row.kind == Allowed) || ...)) return &row;
    throw "no such switch of this kind";
  }
  const Switch* row_;
};

// Read the environment at each call; an unset or empty variable gives the default.
// A bad value throws Error(Value) with the variable, the value and what was expected.
int64_t get_int(Row<Kind::Int> row);
bool get_bool(Row<Kind::Bool> row);
std::string get_string(Row<Kind::String, Kind::Choice> row);

struct Setting {
  const Switch* row;
  std::string value;  // what is in force, not checked
  bool set;           // by the user
};
std::vector<Setting> table();

}  // namespace tpu::env
