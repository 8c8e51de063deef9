// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "pjrt/options.h"
#include "pjrt/plugin.h"
#include "pjrt_c_api.h"

// How this folder calls the C API; not for other folders.
namespace tpu::pjrt {

// A zeroed argument struct that states its size, by which a plugin of another age knows its fields.
template <class T>
T args() {
  T a{};
  a.struct_size = sizeof(T);
  return a;
}

// Whether the plugin is new enough to have a function.
template <class F>
bool has(const PJRT_Api* api, F* PJRT_Api::* function) {
  const char* field = reinterpret_cast<const char*>(&(api->*function));
  size_t end = static_cast<size_t>(field - reinterpret_cast<const char*>(api)) + sizeof(F*);
  return end <= api->struct_size && api->*function;
}

// Calls a function that returns PJRT_Error*.
template <class F, class A>
void call(const PJRT_Api* api, F* PJRT_Api::* function, A& a, const char* what) {
  if (!has(api, function)) [[unlikely]]
    fail(ErrorKind::NotImplemented, what, ": the PJRT plugin (API ", api->pjrt_api_version.major_version, ".",
         api->pjrt_api_version.minor_version, ") does not have it");
  if (PJRT_Error* error = (api->*function)(&a)) [[unlikely]]
    check(api, error, what);
}

// Set at exit, when clients are gone: destructors must call the plugin no more.
extern std::atomic<bool> exiting;

// The text of an error, which is freed.
std::string take_text(const PJRT_Api* api, PJRT_Error* error, PJRT_Error_Code* code = nullptr);

// Views into `options`, which must outlive them.
std::vector<PJRT_NamedValue> named_values(const std::map<std::string, Option>& options);
std::string value_text(const PJRT_NamedValue& value);
std::map<std::string, std::string> attributes_text(const PJRT_NamedValue* values, size_t count);

PJRT_Program mlir_program(std::string_view mlir_text);

}  // namespace tpu::pjrt
