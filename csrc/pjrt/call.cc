// SPDX-License-Identifier: Apache-2.0
#include "pjrt/call.h"

#include <string_view>
#include <type_traits>

namespace tpu::pjrt {

std::string take_text(const PJRT_Api* api, PJRT_Error* error, PJRT_Error_Code* code) {
  auto message = args<PJRT_Error_Message_Args>();
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string result(message.message, message.message_size);
  if (code) {
    auto get = args<PJRT_Error_GetCode_Args>();
    get.error = error;
    *code = PJRT_Error_Code_UNKNOWN;
    if (PJRT_Error* second = api->PJRT_Error_GetCode(&get))
      take_text(api, second);
    else
      *code = get.code;
  }
  auto destroy = args<PJRT_Error_Destroy_Args>();
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  return result;
}

void check(const PJRT_Api* api, PJRT_Error* error, const char* what) {
  if (!error) return;
  PJRT_Error_Code code;
  std::string message = take_text(api, error, &code);
  ErrorKind kind = code == PJRT_Error_Code_RESOURCE_EXHAUSTED ? ErrorKind::OutOfMemory
                   : code == PJRT_Error_Code_UNIMPLEMENTED    ? ErrorKind::NotImplemented
                                                              : ErrorKind::Runtime;
  fail(kind, what, ": ", message);
}

std::vector<PJRT_NamedValue> named_values(const std::map<std::string, Option>& options) {
  std::vector<PJRT_NamedValue> values;
  for (const auto& [name, option] : options) {
    auto v = args<PJRT_NamedValue>();
    v.name = name.data();
    v.name_size = name.size();
    v.value_size = 1;
    std::visit(
        [&v](const auto& x) {
          using T = std::decay_t<decltype(x)>;
          if constexpr (std::is_same_v<T, std::string>) {
            v.type = PJRT_NamedValue_kString;
            v.string_value = x.data();
            v.value_size = x.size();
          } else if constexpr (std::is_same_v<T, int64_t>) {
            v.type = PJRT_NamedValue_kInt64;
            v.int64_value = x;
          } else if constexpr (std::is_same_v<T, bool>) {
            v.type = PJRT_NamedValue_kBool;
            v.bool_value = x;
          } else if constexpr (std::is_same_v<T, float>) {
            v.type = PJRT_NamedValue_kFloat;
            v.float_value = x;
          } else {
            v.type = PJRT_NamedValue_kInt64List;
            v.int64_array_value = x.data();
            v.value_size = x.size();
          }
        },
        option);
    values.push_back(v);
  }
  return values;
}

std::string value_text(const PJRT_NamedValue& v) {
  switch (v.type) {
    case PJRT_NamedValue_kString: return std::string(v.string_value, v.value_size);
    case PJRT_NamedValue_kInt64: return text(v.int64_value);
    case PJRT_NamedValue_kFloat: return text(v.float_value);
    case PJRT_NamedValue_kBool: return v.bool_value ? "true" : "false";
    case PJRT_NamedValue_kInt64List: {
      std::string list;
      for (size_t i = 0; i < v.value_size; ++i) list += (i ? "," : "") + std::to_string(v.int64_array_value[i]);
      return list;
    }
  }
  return "?";
}

std::map<std::string, std::string> attributes_text(const PJRT_NamedValue* values, size_t count) {
  std::map<std::string, std::string> result;
  for (size_t i = 0; i < count; ++i) result[std::string(values[i].name, values[i].name_size)] = value_text(values[i]);
  return result;
}

PJRT_Program mlir_program(std::string_view mlir_text) {
  static constexpr std::string_view format = "mlir";
  auto program = args<PJRT_Program>();
  program.code = const_cast<char*>(mlir_text.data());  // only read
  program.code_size = mlir_text.size();
  program.format = format.data();
  program.format_size = format.size();
  return program;
}

}  // namespace tpu::pjrt
