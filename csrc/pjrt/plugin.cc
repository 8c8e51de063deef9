// SPDX-License-Identifier: Apache-2.0
#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "pjrt/call.h"

namespace tpu::pjrt {
namespace {

constexpr int kOldestMinor = 40;

const PJRT_Api* open_plugin(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) fail(ErrorKind::Runtime, "PJRT plugin ", path, ": no such file");
  // XLA reads it when it first logs. Loading a cached CPU program warns at length otherwise.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    fail(ErrorKind::Runtime, "PJRT plugin ", path, ": cannot be loaded: ", reason ? reason : "unknown reason");
  }
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (!get_api) {
    dlclose(library);
    fail(ErrorKind::Runtime, "PJRT plugin ", path, ": is a library without a GetPjrtApi symbol");
  }
  const PJRT_Api* api = get_api();
  if (!api) fail(ErrorKind::Runtime, "PJRT plugin ", path, ": GetPjrtApi returns null");
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR || version.minor_version < kOldestMinor)
    fail(ErrorKind::Runtime, "PJRT plugin ", path, ": has PJRT API ", version.major_version, ".", version.minor_version,
         ", expected ", PJRT_API_MAJOR, ".", kOldestMinor, " or newer");
  auto initialize = args<PJRT_Plugin_Initialize_Args>();
  call(api, &PJRT_Api::PJRT_Plugin_Initialize, initialize, path.c_str());
  return api;
}

}  // namespace

Plugin& Plugin::load(const std::string& path) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, std::unique_ptr<Plugin>>;  // leaked, see class
  std::lock_guard lock(mutex);
  std::unique_ptr<Plugin>& plugin = loaded[path];
  if (!plugin) plugin.reset(new Plugin(path, open_plugin(path)));
  return *plugin;
}

std::map<std::string, std::string> Plugin::attributes() const {
  auto a = args<PJRT_Plugin_Attributes_Args>();
  call(api_, &PJRT_Api::PJRT_Plugin_Attributes, a, "plugin attributes");
  return attributes_text(a.attributes, a.num_attributes);
}

}  // namespace tpu::pjrt
