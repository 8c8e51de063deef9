// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "pjrt/client.h"

namespace tpu::runtime {

// The process's one PJRT client, opened on first use. Thread-safe. The client is never destroyed:
// tensors may outlive every static of ours at exit.
class Runtime {
 public:
  // Opens the plugin if need be. Throws tpu::Error that lists every plugin that was tried and why
  // it didn't load; a later call tries again. Throws in a forked child whose parent had the client
  // open (XLA's threads do not survive fork).
  static Runtime& get();
  static bool opened();              // never opens, never throws
  static bool available() noexcept;  // true if get() works or would find a plugin; opens nothing

  pjrt::Client& client() { return *client_; }
  pjrt::Plugin& plugin() { return *plugin_; }
  int device_count() const { return static_cast<int>(client_->devices().size()); }
  const pjrt::Device& device(int index) const { return client_->devices()[static_cast<size_t>(index)]; }
  bool is_cpu() const { return is_cpu_; }                    // virtual devices of the XLA CPU plugin
  const std::string& identity() const { return identity_; }  // plugin, version, machine features: for cache keys
  // Memory of one device in bytes: the limit we enforce.
  int64_t memory_limit() const { return memory_limit_; }

 private:
  Runtime() = default;
  void open();
  pjrt::Plugin* plugin_ = nullptr;
  std::unique_ptr<pjrt::Client> client_;
  bool is_cpu_ = false;
  std::string identity_;
  int64_t memory_limit_ = 0;
};

// File of the Python package's default plugin, told by the loader; empty: none.
void set_bundled_plugin(const std::string& path);
// File of the installed libtpu, told by the loader; empty: not installed.
void set_libtpu_path(const std::string& path);

// True in a process forked after its parent had opened the plugin: XLA's threads are gone there,
// so nothing may call PJRT, not even to free. Never throws.
bool in_forked_child() noexcept;

// How many devices there are; opens the client. 0 when no plugin loads.
int device_count() noexcept;

// Throws Error(Runtime) when `index` names no device. The current one passes without a look, so
// also in a forked child.
void check_device(int index);

// The calling thread's current device; starts at 0.
int current_device();
void set_current_device(int index);  // checks it

}  // namespace tpu::runtime
