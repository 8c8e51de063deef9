// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "runtime/memory.h"

namespace tpu::runtime {
namespace {

std::atomic<Runtime*> opened_runtime{nullptr};
std::atomic<bool> plugin_touched{false};  // XLA's threads may run from now on
std::atomic<bool> forked{false};
std::atomic<int> known_device_count{0};
thread_local int current = 0;

// Leaked, as is the runtime: threads may still ask for the device while the process exits.
struct Paths {
  std::mutex mutex;  // of both paths and of opening
  std::string bundled, libtpu;
};
Paths& paths() {
  static auto* instance = new Paths;
  return *instance;
}

void after_fork_in_child() {
  if (plugin_touched.load(std::memory_order_acquire)) forked.store(true, std::memory_order_release);
}

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)registered;
}

[[noreturn]] void refuse_forked() {
  fail(ErrorKind::Runtime,
       "Cannot re-initialize the tpu device in a forked subprocess. To use tpu with multiprocessing, "
       "you must use the 'spawn' start method");
}

bool is_file(const std::string& path) {
  struct stat info{};
  return !path.empty() && stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// A TPU shows as /dev/accel0, … or, newer, as a numbered VFIO group.
bool tpu_present() {
  auto has = [](const char* folder, auto&& matches) {
    DIR* dir = opendir(folder);
    if (!dir) return false;
    bool found = false;
    while (const dirent* entry = readdir(dir)) found = found || matches(std::string_view(entry->d_name));
    closedir(dir);
    return found;
  };
  return has("/dev",
             [](std::string_view name) {
               return name.size() > 5 && name.starts_with("accel") && std::isdigit(static_cast<unsigned char>(name[5]));
             }) ||
         has("/dev/vfio", [](std::string_view name) {
           return std::all_of(name.begin(), name.end(),
                              [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
         });
}

struct Candidate {
  std::string what;  // for messages
  std::string path;  // empty: not there, `missing` says why
  std::string missing;
};

// The plugins to try, best first. Holds no lock: the caller has it.
std::vector<Candidate> candidates(const Paths& known) {
  if (std::string path = env::get_string("TPU_LIBRARY_PATH"); !path.empty()) {
    if (is_file(path)) return {{"TPU_LIBRARY_PATH", path, ""}};
    return {{"TPU_LIBRARY_PATH", "", text("there is no file ", path)}};
  }
  std::vector<Candidate> out;
  const bool tpu = tpu_present();
  if (!tpu)
    out.push_back({"libtpu", "", "this host has no TPU (no /dev/accel* nor /dev/vfio group)"});
  else if (known.libtpu.empty())
    out.push_back({"libtpu", "", "the package is not installed; install torch-tpu[tpu]"});
  else
    out.push_back({"libtpu", known.libtpu, ""});
  if (is_file(known.bundled))
    out.push_back({"bundled CPU plugin", known.bundled, ""});
  else
    out.push_back({"bundled CPU plugin", "",
                   known.bundled.empty() ? std::string("the package fastatomstruct-xla-cpu is not installed")
                                         : text("there is no file ", known.bundled)});
  return out;
}

// Only the CPU plugin knows `cpu_device_count`, and which plugin it is shows only once a client is
// there: offer the option first, and without it where that is refused.
std::unique_ptr<pjrt::Client> create_client(pjrt::Plugin& plugin) {
  const int64_t count = env::get_int("TORCH_TPU_VIRTUAL_DEVICES");
  if (plugin.path().find("libtpu") == std::string::npos) {
    try {
      return pjrt::Client::create(plugin, {{"cpu_device_count", pjrt::Option(count)}});
    } catch (const Error& e) {
      TPU_LOG(1, plugin.path(), " refuses cpu_device_count: ", e.what());
    }
  }
  return pjrt::Client::create(plugin, {});
}

// Hash of the CPU's feature flags: XLA CPU programs are compiled for them.
std::string cpu_features() {
  std::ifstream file("/proc/cpuinfo");
  Hash128 hash;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("flags") || line.starts_with("Features")) {
      hash.add(line);
      break;
    }
  return hash.hex();
}

int64_t host_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  // A container may have less: cgroup v2, then v1. "max" doesn't parse as a number.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    if (int64_t bound = 0; file >> bound && bound > 0) bytes = std::min(bytes, bound);
  }
  return bytes;
}

// What the plugin says a device has; 0 where it doesn't.
int64_t plugin_memory_limit(const pjrt::Client& client) {
  const PJRT_Api* api = client.api();
  if (client.devices().empty() || !api->PJRT_Device_MemoryStats) return 0;
  PJRT_Device_MemoryStats_Args args{};
  args.struct_size = PJRT_Device_MemoryStats_Args_STRUCT_SIZE;
  args.device = client.devices()[0].handle;
  try {
    pjrt::check(api, api->PJRT_Device_MemoryStats(&args), "memory statistics");
  } catch (const Error& e) {
    TPU_LOG(2, e.what());
    return 0;
  }
  return args.bytes_limit_is_set ? args.bytes_limit : 0;
}

}  // namespace

void Runtime::open() {
  std::string tried;
  for (const Candidate& candidate : candidates(paths())) {
    std::string why = candidate.missing;
    if (!candidate.path.empty()) {
      try {
        plugin_touched.store(true, std::memory_order_release);
        plugin_ = &pjrt::Plugin::load(candidate.path);
        client_ = create_client(*plugin_);
        if (!client_->devices().empty()) break;
        why = text(candidate.path, " has no device");
        client_.reset();
      } catch (const Error& e) {
        why = e.what();
        // Going on to virtual devices on a TPU host must not pass unseen.
        if (candidate.what == "libtpu")
          log::write(text("the TPU's plugin can't be used, trying virtual devices: ", why));
      }
    }
    tried += text("\n  ", candidate.what, ": ", why);
  }
  if (!client_) fail(ErrorKind::Runtime, "no PJRT plugin for the tpu device could be loaded; tried", tried);

  // c10::DeviceIndex is an int8_t.
  TPU_CHECK(client_->devices().size() <= 127, "the plugin shows ", client_->devices().size(),
            " devices; PyTorch can address 127");
  is_cpu_ = client_->platform_name() == "cpu";
  if (is_cpu_) memory::keep_freed_pages();
  struct stat info{};
  const bool known = stat(plugin_->path().c_str(), &info) == 0;
  Hash128 attributes;  // the CPU plugin's platform version says only "cpu"; these name XLA's version
  for (const auto& [name, value] : plugin_->attributes()) {
    attributes.add(name);
    attributes.add(value);
  }
  identity_ = text(client_->platform_name(), '|', client_->platform_version(), '|', plugin_->api_major(), '.',
                   plugin_->api_minor(), '|', known ? static_cast<int64_t>(info.st_size) : 0, '|', attributes.hex(),
                   '|', is_cpu_ ? cpu_features() : device(0).kind);
  if (const int64_t mb = env::get_int("TORCH_TPU_MEMORY_LIMIT_MB"); mb > 0)
    memory_limit_ = mb << 20;
  else
    memory_limit_ = is_cpu_ ? host_memory() / device_count() : plugin_memory_limit(*client_);
  TPU_LOG(1, "opened ", plugin_->path(), ": ", device_count(), " x ", device(0).kind);
}

Runtime& Runtime::get() {
  Runtime* runtime = opened_runtime.load(std::memory_order_acquire);
  if (runtime && !in_forked_child()) [[likely]]
    return *runtime;
  if (in_forked_child()) refuse_forked();
  watch_forks();
  std::lock_guard lock(paths().mutex);
  if (Runtime* other = opened_runtime.load(std::memory_order_acquire)) return *other;
  std::unique_ptr<Runtime> fresh(new Runtime);
  fresh->open();
  known_device_count.store(fresh->device_count(), std::memory_order_relaxed);
  opened_runtime.store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

bool Runtime::opened() { return opened_runtime.load(std::memory_order_acquire) != nullptr; }

bool Runtime::available() noexcept {
  if (in_forked_child()) return false;
  if (opened()) return true;
  try {
    std::lock_guard lock(paths().mutex);
    for (const Candidate& candidate : candidates(paths()))
      if (!candidate.path.empty()) return true;
  } catch (...) {  // a malformed switch: get() will say so
  }
  return false;
}

void set_bundled_plugin(const std::string& path) {
  std::lock_guard lock(paths().mutex);
  paths().bundled = path;
}

void set_libtpu_path(const std::string& path) {
  std::lock_guard lock(paths().mutex);
  paths().libtpu = path;
}

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

int device_count() noexcept {
  if (const int known = known_device_count.load(std::memory_order_relaxed)) return known;
  try {
    return Runtime::get().device_count();
  } catch (const std::exception& e) {
    TPU_LOG(1, "no device: ", e.what());
    return 0;
  }
}

void check_device(int index) {
  if (index == current) return;
  const int count = Runtime::get().device_count();
  TPU_CHECK(index >= 0 && index < count, "invalid device index ", index, ": tpu:", index, " does not exist, there ",
            count == 1 ? "is 1 device" : text("are ", count, " devices"));
}

int current_device() { return current; }

void set_current_device(int index) {
  check_device(index);
  current = index;
}

}  // namespace tpu::runtime
