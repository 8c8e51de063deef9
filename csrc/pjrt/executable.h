// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/event.h"
#include "pjrt_c_api.h"

namespace tpu::pjrt {

struct Device;

// Bytes on the device, as the compiler planned them.
struct MemoryStats {
  int64_t code = 0;
  int64_t arguments = 0;
  int64_t outputs = 0;
  int64_t aliased = 0;  // outputs that reuse donated arguments
  int64_t temporaries = 0;
  int64_t peak = 0;  // 0 where the plugin does not say
};

struct ArrayType {
  PJRT_Buffer_Type type;
  std::vector<int64_t> dims;
};

// After XLA's passes, in whichever form the plugin gives it.
struct OptimizedProgram {
  std::string format;  // "hlo": a serialized HloModuleProto; "hlo_with_config"; "mlir"
  std::string code;
};

// Owns a PJRT_Executable: a compiled program, perhaps for a device that is not here.
class Compiled {
 public:
  Compiled() = default;
  Compiled(const PJRT_Api* api, PJRT_Executable* handle);
  Compiled(Compiled&& other) noexcept { swap(other); }
  Compiled& operator=(Compiled&& other) noexcept {
    Compiled taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Compiled();

  size_t num_outputs() const { return num_outputs_; }
  std::vector<ArrayType> outputs() const;
  std::string name() const;
  std::string serialize() const;
  std::string fingerprint() const;
  std::map<std::string, double> cost_analysis() const;
  MemoryStats memory() const;
  OptimizedProgram optimized() const;
  std::string optimized_program() const { return optimized().code; }

 protected:
  void swap(Compiled& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(compiled_, other.compiled_);
    std::swap(num_outputs_, other.num_outputs_);
  }
  const PJRT_Api* api_ = nullptr;
  PJRT_Executable* compiled_ = nullptr;
  size_t num_outputs_ = 0;
};

// Owns a PJRT_LoadedExecutable: a program ready to launch. May be launched from several threads.
// May be destroyed while its launches run: the plugin keeps what they need.
class Executable : public Compiled {
 public:
  Executable() = default;
  Executable(const PJRT_Api* api, PJRT_LoadedExecutable* handle);
  Executable(Executable&& other) noexcept
      : Compiled(std::move(other)), handle_(std::exchange(other.handle_, nullptr)) {}
  Executable& operator=(Executable&& other) noexcept {
    Executable taken(std::move(other));
    swap(taken);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~Executable();

  explicit operator bool() const { return handle_ != nullptr; }

  // Launches a portable program on `device` without waiting. `outs` receives num_outputs() owned
  // buffers. `non_donatable` lists the arguments whose memory must survive; other arguments the
  // program aliases are deleted. No completion event is asked for when `done` is null.
  // The plugin checks the number of arguments, their size in bytes, device and liveness (errors);
  // not their dtype and dimensions (read as the program's), nor null (a crash): the caller must.
  void execute(PJRT_Buffer* const* args, size_t num_args, PJRT_Buffer** outs, const Device& device,
               const int64_t* non_donatable, size_t num_non_donatable, Event* done) const;

  // Launches a program of several replicas or partitions on all its devices at once.
  // args[d] and outs[d] are those of device d; `done` is null or has `num_devices` events.
  void execute_all(PJRT_Buffer* const* const* args, size_t num_devices, size_t num_args, PJRT_Buffer** const* outs,
                   const int64_t* non_donatable, size_t num_non_donatable, Event* done) const;

 private:
  PJRT_LoadedExecutable* handle_ = nullptr;
};

}  // namespace tpu::pjrt
