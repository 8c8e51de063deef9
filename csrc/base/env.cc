// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace tpu::env {
namespace {

const char* raw(const Switch& row) {
  const char* value = std::getenv(row.name);
  return value && *value ? value : row.fallback;
}

[[noreturn]] void bad(const Switch& row, std::string_view value, const std::string& expected) {
  fail(ErrorKind::Value, "environment variable ", row.name, ": expected ", expected, ", got \"", value, "\"");
}

}  // namespace

int64_t get_int(Row<Kind::Int> id) {
  const Switch& row = *id;
  std::string_view value = raw(row);
  int64_t result = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || result < row.low || result > row.high)
    bad(row, value, text("an integer from ", row.low, " to ", row.high));
  return result;
}

bool get_bool(Row<Kind::Bool> id) {
  const Switch& row = *id;
  std::string value = raw(row);
  for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (value == "1" || value == "true" || value == "on" || value == "yes") return true;
  if (value == "0" || value == "false" || value == "off" || value == "no") return false;
  bad(row, raw(row), "1 or 0");
}

std::string get_string(Row<Kind::String, Kind::Choice> id) {
  const Switch& row = *id;
  std::string value = raw(row);
  if (row.kind == Kind::Choice) {
    std::string choices = text("|", row.choices, "|");
    if (value.find('|') != std::string::npos || choices.find("|" + value + "|") == std::string::npos)
      bad(row, value, row.choices);
  }
  return value;
}

std::vector<Setting> table() {
  std::vector<Setting> settings;
  for (const Switch& row : kSwitches) {
    const char* value = std::getenv(row.name);
    settings.push_back({&row, raw(row), value && *value});
  }
  return settings;
}

}  // namespace tpu::env
