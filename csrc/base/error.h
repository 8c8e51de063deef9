// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace tpu {

// Which Python exception an error becomes at the boundary (aten/ and python/ translate it).
enum class ErrorKind { Runtime, Value, Type, Index, NotImplemented, Linalg, OutOfMemory, Internal };

// The one exception of the layers below aten/. what() is the text the user sees.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Concatenates the arguments as operator<< prints them.
template <class... A>
std::string text(const A&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... A>
[[noreturn]] void fail(ErrorKind kind, const A&... parts) {
  throw Error(kind, text(parts...));
}

}  // namespace tpu

// Throws tpu::Error (never aborts) when `condition` is false; the rest is the message.
#define TPU_CHECK(condition, ...)                          \
  do {                                                     \
    if (!(condition)) [[unlikely]]                         \
      ::tpu::fail(::tpu::ErrorKind::Runtime, __VA_ARGS__); \
  } while (false)

// As TPU_CHECK, for conditions that only a fault of ours can break.
#define TPU_INTERNAL(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::tpu::fail(::tpu::ErrorKind::Internal, "internal error of torch_tpu: ", __VA_ARGS__); \
  } while (false)
