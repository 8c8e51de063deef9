// SPDX-License-Identifier: Apache-2.0
#include "pjrt/executable.h"

#include "pjrt/call.h"
#include "pjrt/client.h"

namespace tpu::pjrt {
namespace {

PJRT_Executable* compiled_of(const PJRT_Api* api, PJRT_LoadedExecutable* handle) {
  auto a = args<PJRT_LoadedExecutable_GetExecutable_Args>();
  a.loaded_executable = handle;
  call(api, &PJRT_Api::PJRT_LoadedExecutable_GetExecutable, a, "executable");
  return a.executable;
}

void destroy(const PJRT_Api* api, PJRT_LoadedExecutable* handle) {
  auto a = args<PJRT_LoadedExecutable_Destroy_Args>();
  a.executable = handle;
  if (PJRT_Error* error = api->PJRT_LoadedExecutable_Destroy(&a)) take_text(api, error);
}

}  // namespace

Compiled::Compiled(const PJRT_Api* api, PJRT_Executable* handle) : api_(api), compiled_(handle) {
  auto a = args<PJRT_Executable_NumOutputs_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_NumOutputs, a, "number of outputs");
  num_outputs_ = a.num_outputs;
}

Compiled::~Compiled() {
  if (!compiled_ || exiting.load(std::memory_order_relaxed)) return;
  auto a = args<PJRT_Executable_Destroy_Args>();
  a.executable = compiled_;
  if (PJRT_Error* error = api_->PJRT_Executable_Destroy(&a)) take_text(api_, error);
}

std::vector<ArrayType> Compiled::outputs() const {
  auto types = args<PJRT_Executable_OutputElementTypes_Args>();
  types.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_OutputElementTypes, types, "output types");
  auto shapes = args<PJRT_Executable_OutputDimensions_Args>();
  shapes.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_OutputDimensions, shapes, "output dimensions");
  std::vector<ArrayType> result;
  const int64_t* dims = shapes.dims;
  for (size_t i = 0; i < types.num_output_types; ++i) {
    result.push_back({types.output_types[i], {dims, dims + shapes.dim_sizes[i]}});
    dims += shapes.dim_sizes[i];
  }
  return result;
}

std::string Compiled::name() const {
  auto a = args<PJRT_Executable_Name_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_Name, a, "name of a program");
  return {a.executable_name, a.executable_name_size};
}

std::string Compiled::serialize() const {
  auto a = args<PJRT_Executable_Serialize_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_Serialize, a, "serialize a program");
  std::string result(a.serialized_bytes, a.serialized_bytes_size);
  a.serialized_executable_deleter(a.serialized_executable);
  return result;
}

std::string Compiled::fingerprint() const {
  auto a = args<PJRT_Executable_Fingerprint_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_Fingerprint, a, "fingerprint of a program");
  return {a.executable_fingerprint, a.executable_fingerprint_size};
}

std::map<std::string, double> Compiled::cost_analysis() const {
  auto a = args<PJRT_Executable_GetCostAnalysis_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_GetCostAnalysis, a, "cost analysis");
  std::map<std::string, double> result;
  for (size_t i = 0; i < a.num_properties; ++i) {
    const PJRT_NamedValue& v = a.properties[i];
    std::string name(v.name, v.name_size);
    if (v.type == PJRT_NamedValue_kFloat) result[name] = v.float_value;
    if (v.type == PJRT_NamedValue_kInt64) result[name] = static_cast<double>(v.int64_value);
  }
  return result;
}

MemoryStats Compiled::memory() const {
  auto a = args<PJRT_Executable_GetCompiledMemoryStats_Args>();
  a.executable = compiled_;
  call(api_, &PJRT_Api::PJRT_Executable_GetCompiledMemoryStats, a, "memory statistics");
  return {a.generated_code_size_in_bytes, a.argument_size_in_bytes, a.output_size_in_bytes,
          a.alias_size_in_bytes,          a.temp_size_in_bytes,     a.peak_memory_in_bytes};
}

OptimizedProgram Compiled::optimized() const {
  auto program = args<PJRT_Program>();
  auto a = args<PJRT_Executable_OptimizedProgram_Args>();
  a.executable = compiled_;
  a.program = &program;
  // Once for the size and the format, once for the bytes.
  call(api_, &PJRT_Api::PJRT_Executable_OptimizedProgram, a, "optimized program");
  OptimizedProgram result{{program.format, program.format_size}, std::string(program.code_size, 0)};
  program.code = result.code.data();
  call(api_, &PJRT_Api::PJRT_Executable_OptimizedProgram, a, "optimized program");
  return result;
}

Executable::Executable(const PJRT_Api* api, PJRT_LoadedExecutable* handle)
    : Compiled(api, compiled_of(api, handle)), handle_(handle) {}

Executable::~Executable() {
  if (handle_ && !exiting.load(std::memory_order_relaxed)) destroy(api_, handle_);
}

void Executable::execute(PJRT_Buffer* const* arguments, size_t num_args, PJRT_Buffer** outs, const Device& device,
                         const int64_t* non_donatable, size_t num_non_donatable, Event* done) const {
  auto options = args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = non_donatable;
  options.num_non_donatable_input_indices = num_non_donatable;
  PJRT_Event* event = nullptr;
  auto a = args<PJRT_LoadedExecutable_Execute_Args>();
  a.executable = handle_;
  a.options = &options;
  a.argument_lists = &arguments;
  a.num_devices = 1;
  a.num_args = num_args;
  a.output_lists = &outs;
  a.device_complete_events = done ? &event : nullptr;
  a.execute_device = device.handle;
  if (PJRT_Error* error = api_->PJRT_LoadedExecutable_Execute(&a)) [[unlikely]]
    check(api_, error, "launch");
  if (done) *done = Event(api_, event);
}

void Executable::execute_all(PJRT_Buffer* const* const* arguments, size_t num_devices, size_t num_args,
                             PJRT_Buffer** const* outs, const int64_t* non_donatable, size_t num_non_donatable,
                             Event* done) const {
  auto options = args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = non_donatable;
  options.num_non_donatable_input_indices = num_non_donatable;
  std::vector<PJRT_Event*> events(num_devices);
  auto a = args<PJRT_LoadedExecutable_Execute_Args>();
  a.executable = handle_;
  a.options = &options;
  a.argument_lists = arguments;
  a.num_devices = num_devices;
  a.num_args = num_args;
  a.output_lists = outs;
  a.device_complete_events = done ? events.data() : nullptr;
  call(api_, &PJRT_Api::PJRT_LoadedExecutable_Execute, a, "launch on all devices");
  for (size_t i = 0; done && i < num_devices; ++i) done[i] = Event(api_, events[i]);
}

}  // namespace tpu::pjrt
