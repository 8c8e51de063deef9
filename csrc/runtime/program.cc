// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "runtime/compile_log.h"
#include "runtime/device.h"
#include "runtime/disk_cache.h"
#include "runtime/metrics.h"
#include "runtime/precision.h"

namespace tpu::runtime {
namespace {

struct Entry {
  std::mutex mutex;  // held while compiling: the second comer waits
  std::unique_ptr<Program> program;
};

struct KeyHash {
  size_t operator()(const Hash128& key) const { return static_cast<size_t>(key.lo()); }
};

std::atomic<uint64_t> current_generation{0};
std::atomic<int64_t> loaded{0};

struct Entries {
  std::mutex mutex;
  std::unordered_map<Hash128, std::unique_ptr<Entry>, KeyHash> of;
};
Entries& entries() {
  static auto* instance = new Entries;
  return *instance;
}

Entry& entry_of(const Hash128& key) {
  std::lock_guard lock(entries().mutex);
  auto& slot = entries().of[key];
  if (!slot) slot = std::make_unique<Entry>();
  return *slot;
}

struct SeenQueue {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::condition_variable more;
  std::deque<SeenProgram> programs;
};
SeenQueue& seen() {
  static auto* queue = new SeenQueue;
  return *queue;
}

void dump(const std::string& mlir, std::string_view name, const Hash128& key) {
  const std::string folder = env::get_string("TORCH_TPU_DUMP");
  if (folder.empty()) return;
  static std::atomic<int> number{0};
  std::string file(name);
  for (char& c : file) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  char prefix[16];
  std::snprintf(prefix, sizeof prefix, "%05d_", number++);
  std::ofstream(folder + "/" + prefix + file + "_" + key.hex().substr(0, 8) + ".mlir") << mlir;
}

pjrt::Executable load_from_disk(const Hash128& key, const std::string& options) {
  const auto serialized = disk_cache::load(key);
  if (!serialized) return {};
  try {
    pjrt::Executable executable = Runtime::get().client().deserialize(*serialized, options);
    metrics::count_disk_hit();
    return executable;
  } catch (const Error& error) {
    TPU_LOG(1, "cached program ", key.hex(), " is unusable and dropped: ", error.what());
    disk_cache::discard(key);
    return {};
  }
}

thread_local const OptionsScope::Options* scoped_options = nullptr;

// Part of the cache key as well.
std::string compile_options(bool cpu) {
  pjrt::CompileOptions options;
  options.env_overrides.emplace_back("xla_allow_excess_precision", allow_excess_precision());
  // Without this the CPU plugin's maximum and minimum drop NaN.
  if (cpu) options.env_overrides.emplace_back("xla_cpu_enable_fast_min_max", false);
  if (scoped_options) {
    for (const auto& option : *scoped_options) options.env_overrides.push_back(option);
  }
  return pjrt::serialize(options);
}

}  // namespace

OptionsScope::OptionsScope(const Options& options) : outer_(std::exchange(scoped_options, &options)) {}
OptionsScope::~OptionsScope() { scoped_options = outer_; }

uint64_t program_generation() { return current_generation.load(std::memory_order_acquire); }
int64_t loaded_programs() { return loaded.load(); }

std::vector<ProgramMemory> program_memory() {
  std::vector<ProgramMemory> out;
  {
    std::lock_guard lock(entries().mutex);
    for (auto& [key, entry] : entries().of) {
      std::unique_lock held(entry->mutex, std::try_to_lock);  // one that is being compiled has no figures yet
      if (!held || !entry->program) continue;
      out.push_back({entry->program->name, entry->program->number, entry->program->executable.memory()});
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return out;
}

void unload_programs() {
  std::lock_guard lock(entries().mutex);
  current_generation.fetch_add(1);
  for (auto& [key, entry] : entries().of) {
    std::lock_guard held(entry->mutex);
    if (!entry->program) continue;
    entry->program->executable = {};
    entry->program.release();  // plans may still point at it, to see that its time is over
    loaded.fetch_sub(1);
  }
}

void start_watching() { seen().on.store(true); }
bool watching() { return seen().on.load(std::memory_order_relaxed); }

std::optional<SeenProgram> next_seen(double seconds) {
  SeenQueue& queue = seen();
  std::unique_lock lock(queue.mutex);
  queue.more.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !queue.programs.empty(); });
  if (queue.programs.empty()) return std::nullopt;
  SeenProgram program = std::move(queue.programs.front());
  queue.programs.pop_front();
  return program;
}

Program& find_program(const std::string& mlir, std::string_view name, std::string_view line, std::string_view reason) {
  Runtime& runtime = Runtime::get();
  const std::string options = compile_options(runtime.is_cpu());
  Hash128 key;
  key.add(runtime.identity());
  key.add(options);
  key.add(mlir);
  Entry& entry = entry_of(key);
  std::lock_guard lock(entry.mutex);
  if (entry.program) return *entry.program;
  if (watching()) {
    std::lock_guard watched(seen().mutex);
    seen().programs.push_back({std::string(name), std::string(line), mlir});
    seen().more.notify_one();
  }

  dump(mlir, name, key);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  pjrt::Executable executable = load_from_disk(key, options);
  const bool from_disk = static_cast<bool>(executable);
  double took = seconds();
  if (!from_disk) {
    {
      const Progress progress{std::string(name)};
      executable = runtime.client().compile(mlir, options);
    }
    took = seconds();
    metrics::count_compile(took);
    disk_cache::store(key, executable.serialize());
  }
  compile_log::add({std::string(name), std::string(reason), std::string(line), took, from_disk});
  auto program = std::make_unique<Program>();
  program->generation = program_generation();
  loaded.fetch_add(1);
  static std::atomic<int64_t> next{0};
  program->number = next.fetch_add(1);
  program->key = key;
  program->name = std::string(name);
  program->temporary_bytes = executable.memory().temporaries;
  program->executable = std::move(executable);
  entry.program = std::move(program);
  return *entry.program;
}

}  // namespace tpu::runtime
