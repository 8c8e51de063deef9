// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/event.h"
#include "pjrt/executable.h"
#include "pjrt/options.h"
#include "pjrt/plugin.h"

namespace tpu::pjrt {

struct Device {
  PJRT_Device* handle;
  int ordinal;  // index in Client::devices()
  int id;       // the plugin's, unique over all hosts
  std::string kind;
  std::string description;
};

// Owns a PJRT_Client. Every buffer and executable of it must be gone before it is destroyed;
// destroying it waits for its launches. Thread-safe.
// Exit: plugins crash when the process ends with launches under way, so at exit (a handler that
// create() registers) clients still alive are destroyed, and the destructors of their buffers,
// executables and events do nothing from then on. Nothing may be launched then.
// Fork: in a child only what needs no thread of the plugin works, so it must not be used there.
class Client {
 public:
  static std::unique_ptr<Client> create(Plugin& plugin, const std::map<std::string, Option>& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const PJRT_Api* api() const { return api_; }
  PJRT_Client* handle() const { return handle_; }
  const std::vector<Device>& devices() const { return devices_; }  // addressable
  std::string platform_name() const;
  std::string platform_version() const;

  enum class HostUse {
    DuringCall,  // `data` is free when the call returns
    UntilDone,   // `data` must stay as it is until `done`
  };
  // Copies a dense row-major host array to the device. `done` may be null with DuringCall.
  Buffer from_host(const void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t rank, const Device& device,
                   HostUse use = HostUse::DuringCall, Event* done = nullptr);

  // `options` is serialize(CompileOptions).
  Executable compile(std::string_view mlir_text, std::string_view options);
  // `serialized` must be what serialize() gave, bit for bit: some flipped bits abort the process.
  Executable deserialize(std::string_view serialized, std::string_view options);

 private:
  Client(const PJRT_Api* api, PJRT_Client* handle);
  static void at_exit();
  void destroy();
  const PJRT_Api* api_;
  PJRT_Client* handle_;
  std::vector<Device> devices_;
};

}  // namespace tpu::pjrt
