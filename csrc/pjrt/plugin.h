// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "pjrt_c_api.h"

namespace tpu::pjrt {

// A loaded plugin. Lives as long as the process: XLA's threads run its code until the end.
class Plugin {
 public:
  // Loads and initializes the plugin, once for each path. Throws Error(Runtime) naming the path.
  static Plugin& load(const std::string& path);

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  int api_major() const { return api_->pjrt_api_version.major_version; }
  int api_minor() const { return api_->pjrt_api_version.minor_version; }
  std::map<std::string, std::string> attributes() const;

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

 private:
  Plugin(std::string path, const PJRT_Api* api) : path_(std::move(path)), api_(api) {}
  std::string path_;
  const PJRT_Api* api_;
};

// Throws `error` (and frees it) as tpu::Error with XLA's text, `what` in front: RESOURCE_EXHAUSTED
// as OutOfMemory, UNIMPLEMENTED as NotImplemented, the rest as Runtime. Null is no error.
void check(const PJRT_Api* api, PJRT_Error* error, const char* what);

}  // namespace tpu::pjrt
