// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/executable.h"
#include "pjrt/options.h"
#include "pjrt/plugin.h"

namespace tpu::pjrt {

// Owns a PJRT_TopologyDescription: devices that need not be here, to compile for.
class Topology {
 public:
  // `name` as the plugin spells it, such as "TPU7x:2x2x1".
  static std::unique_ptr<Topology> create(Plugin& plugin, const std::string& name,
                                          const std::map<std::string, Option>& options = {});
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string platform_name() const;
  std::vector<std::string> device_kinds() const;  // one entry a device
  std::map<std::string, std::string> attributes() const;
  Compiled compile(std::string_view mlir_text, std::string_view options) const;

 private:
  Topology(const PJRT_Api* api, PJRT_TopologyDescription* handle) : api_(api), handle_(handle) {}
  const PJRT_Api* api_;
  PJRT_TopologyDescription* handle_;
};

}  // namespace tpu::pjrt
