// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "pjrt/promise.h"
#include "runtime/value.h"

namespace tpu::distributed {

// A value that is made on the host later, while launches already wait for it. keep() or fail() once, in any thread.
class Promised {
 public:
  Promised(const hlo::Type& type, int device);  // dense row-major
  const runtime::ValueRef& value() const { return value_; }
  // Where to put the contents before keep().
  void* memory();
  void keep();
  void fail(const std::string& why);

 private:
  runtime::ValueRef value_;
  pjrt::Promise promise_;
  std::unique_ptr<char[]> staged_;  // where the device's memory is not the host's
};

// The host's memory that a value lies in, from `offset` bytes on; waits for the value and throws what it failed with.
// `staged` holds a copy where the device's memory is not the host's.
const void* host_memory(const runtime::ValueRef& value, int64_t offset, std::unique_ptr<char[]>& staged);

}  // namespace tpu::distributed
