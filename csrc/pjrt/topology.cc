// SPDX-License-Identifier: Apache-2.0
#include "pjrt/topology.h"

#include "pjrt/call.h"
#include "pjrt/signature.h"

namespace tpu::pjrt {

std::unique_ptr<Topology> Topology::create(Plugin& plugin, const std::string& name,
                                           const std::map<std::string, Option>& options) {
  std::vector<PJRT_NamedValue> values = named_values(options);
  auto a = args<PJRT_TopologyDescription_Create_Args>();
  a.topology_name = name.data();
  a.topology_name_size = name.size();
  a.create_options = values.data();
  a.num_options = values.size();
  std::string what = "topology " + name;
  call(plugin.api(), &PJRT_Api::PJRT_TopologyDescription_Create, a, what.c_str());
  return std::unique_ptr<Topology>(new Topology(plugin.api(), a.topology));
}

Topology::~Topology() {
  auto a = args<PJRT_TopologyDescription_Destroy_Args>();
  a.topology = handle_;
  if (PJRT_Error* error = api_->PJRT_TopologyDescription_Destroy(&a)) take_text(api_, error);
}

std::string Topology::platform_name() const {
  auto a = args<PJRT_TopologyDescription_PlatformName_Args>();
  a.topology = handle_;
  call(api_, &PJRT_Api::PJRT_TopologyDescription_PlatformName, a, "topology");
  return {a.platform_name, a.platform_name_size};
}

std::vector<std::string> Topology::device_kinds() const {
  auto a = args<PJRT_TopologyDescription_GetDeviceDescriptions_Args>();
  a.topology = handle_;
  call(api_, &PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions, a, "topology");
  std::vector<std::string> kinds;
  for (size_t i = 0; i < a.num_descriptions; ++i) {
    auto kind = args<PJRT_DeviceDescription_Kind_Args>();
    kind.device_description = a.descriptions[i];
    call(api_, &PJRT_Api::PJRT_DeviceDescription_Kind, kind, "topology");
    kinds.emplace_back(kind.device_kind, kind.device_kind_size);
  }
  return kinds;
}

std::map<std::string, std::string> Topology::attributes() const {
  auto a = args<PJRT_TopologyDescription_Attributes_Args>();
  a.topology = handle_;
  call(api_, &PJRT_Api::PJRT_TopologyDescription_Attributes, a, "topology");
  return attributes_text(a.attributes, a.num_attributes);
}

Compiled Topology::compile(std::string_view mlir_text, std::string_view options) const {
  const std::string text = marked_for(platform_name(), mlir_text);
  PJRT_Program program = mlir_program(text);
  auto a = args<PJRT_Compile_Args>();
  a.topology = handle_;
  a.program = &program;
  a.compile_options = options.data();
  a.compile_options_size = options.size();
  call(api_, &PJRT_Api::PJRT_Compile, a, "compile ahead of time");
  return Compiled(api_, a.executable);
}

}  // namespace tpu::pjrt
