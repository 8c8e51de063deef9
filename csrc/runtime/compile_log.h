// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What was compiled or loaded from disk, and why: for torch.tpu.compile_report() and TORCH_TPU_LOG=compiles.
namespace tpu::runtime::compile_log {

struct Entry {
  std::string name;    // "aten::add.Tensor"
  std::string reason;  // in the user's words: "argument 0 of aten::add changed size from (8, 128) to (8, 129)"
  std::string line;    // of the user's Python; empty where there is none
  double seconds = 0;  // to compile, or to load
  bool from_disk = false;
};

// Keeps the entry, logs it if somebody asked. Thread-safe, as all here.
void add(Entry entry);

struct Report {
  std::vector<Entry> entries;  // the latest, oldest first
  int64_t dropped = 0;         // older ones that are no longer kept
};
Report report();
void clear();

}  // namespace tpu::runtime::compile_log
