// SPDX-License-Identifier: Apache-2.0
#include "pjrt/client.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "pjrt/call.h"
#include "pjrt/signature.h"

namespace tpu::pjrt {
namespace {

Device describe(const PJRT_Api* api, PJRT_Device* handle, int ordinal) {
  auto get = args<PJRT_Device_GetDescription_Args>();
  get.device = handle;
  call(api, &PJRT_Api::PJRT_Device_GetDescription, get, "device");
  auto id = args<PJRT_DeviceDescription_Id_Args>();
  id.device_description = get.device_description;
  call(api, &PJRT_Api::PJRT_DeviceDescription_Id, id, "device");
  auto kind = args<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = get.device_description;
  call(api, &PJRT_Api::PJRT_DeviceDescription_Kind, kind, "device");
  auto name = args<PJRT_DeviceDescription_ToString_Args>();
  name.device_description = get.device_description;
  call(api, &PJRT_Api::PJRT_DeviceDescription_ToString, name, "device");
  return {handle, ordinal, id.id, {kind.device_kind, kind.device_kind_size}, {name.to_string, name.to_string_size}};
}

// Leaked: used at exit.
struct Registry {
  std::mutex mutex;
  std::vector<Client*> clients;
  pid_t process = 0;
};
Registry& registry() {
  static Registry& r = *new Registry;
  return r;
}

}  // namespace

std::atomic<bool> exiting{false};

Client::Client(const PJRT_Api* api, PJRT_Client* handle) : api_(api), handle_(handle) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  // After the plugin was loaded, so it runs before the plugin's own destructors.
  if (!r.process) std::atexit(at_exit);
  r.process = getpid();
  r.clients.push_back(this);
}

void Client::at_exit() {
  if (exiting.exchange(true)) return;
  Registry& r = registry();
  if (r.process != getpid()) return;  // a forked child has no threads to wait for
  std::lock_guard lock(r.mutex);
  for (Client* client : r.clients) client->destroy();
}

std::unique_ptr<Client> Client::create(Plugin& plugin, const std::map<std::string, Option>& options) {
  // The plugin would abort the process.
  if (pid_t owner = registry().process; owner && owner != getpid())
    fail(ErrorKind::Runtime,
         "cannot use the device in a forked subprocess: its parent already "
         "used it; start the process with the 'spawn' method");
  const PJRT_Api* api = plugin.api();
  std::vector<PJRT_NamedValue> values = named_values(options);
  auto a = args<PJRT_Client_Create_Args>();
  a.create_options = values.data();
  a.num_options = values.size();
  call(api, &PJRT_Api::PJRT_Client_Create, a, "PJRT client");
  std::unique_ptr<Client> client(new Client(api, a.client));

  auto list = args<PJRT_Client_AddressableDevices_Args>();
  list.client = a.client;
  call(api, &PJRT_Api::PJRT_Client_AddressableDevices, list, "devices");
  for (size_t i = 0; i < list.num_addressable_devices; ++i)
    client->devices_.push_back(describe(api, list.addressable_devices[i], static_cast<int>(i)));
  return client;
}

Client::~Client() {
  if (exiting.load()) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::erase(r.clients, this);
  destroy();
}

void Client::destroy() {
  auto a = args<PJRT_Client_Destroy_Args>();
  a.client = handle_;
  if (PJRT_Error* error = api_->PJRT_Client_Destroy(&a)) take_text(api_, error);
}

std::string Client::platform_name() const {
  auto a = args<PJRT_Client_PlatformName_Args>();
  a.client = handle_;
  call(api_, &PJRT_Api::PJRT_Client_PlatformName, a, "platform name");
  return {a.platform_name, a.platform_name_size};
}

std::string Client::platform_version() const {
  auto a = args<PJRT_Client_PlatformVersion_Args>();
  a.client = handle_;
  call(api_, &PJRT_Api::PJRT_Client_PlatformVersion, a, "platform version");
  return {a.platform_version, a.platform_version_size};
}

Buffer Client::from_host(const void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t rank,
                         const Device& device, HostUse use, Event* done) {
  TPU_INTERNAL(done || use == HostUse::DuringCall, "a host buffer that nobody knows when to free");
  auto a = args<PJRT_Client_BufferFromHostBuffer_Args>();
  a.client = handle_;
  a.data = data;
  a.type = type;
  a.dims = dims;
  a.num_dims = rank;
  a.host_buffer_semantics = use == HostUse::DuringCall ? PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
                                                       : PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  a.device = device.handle;
  call(api_, &PJRT_Api::PJRT_Client_BufferFromHostBuffer, a, "copy from the host");
  Event event(api_, a.done_with_host_buffer);
  if (done) *done = std::move(event);
  return Buffer(api_, a.buffer);
}

Executable Client::compile(std::string_view mlir_text, std::string_view options) {
  const std::string text = marked_for(platform_name(), mlir_text);
  PJRT_Program program = mlir_program(text);
  auto a = args<PJRT_Client_Compile_Args>();
  a.client = handle_;
  a.program = &program;
  a.compile_options = options.data();
  a.compile_options_size = options.size();
  call(api_, &PJRT_Api::PJRT_Client_Compile, a, "compile");
  return Executable(api_, a.executable);
}

Executable Client::deserialize(std::string_view serialized, std::string_view options) {
  auto a = args<PJRT_Executable_DeserializeAndLoad_Args>();
  a.client = handle_;
  a.serialized_executable = serialized.data();
  a.serialized_executable_size = serialized.size();
  a.overridden_serialized_compile_options = options.data();
  a.overridden_serialized_compile_options_size = options.size();
  call(api_, &PJRT_Api::PJRT_Executable_DeserializeAndLoad, a, "load a compiled program");
  return Executable(api_, a.loaded_executable);
}

}  // namespace tpu::pjrt
