// SPDX-License-Identifier: Apache-2.0
#include "pjrt/options.h"

#include <cstring>
#include <string_view>

#include "base/error.h"

namespace tpu::pjrt {
namespace {

// The wire format of protocol buffers, as far as CompileOptionsProto needs it.
class Message {
 public:
  Message& integer(int field, int64_t value) {
    tag(field, 0);
    return varint(static_cast<uint64_t>(value));
  }
  Message& real(int field, double value) {
    tag(field, 1);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);  // little-endian, as the wire is
    bytes_.append(raw, sizeof value);
    return *this;
  }
  Message& string(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& message(int field, const Message& value) { return string(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  Message& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  void tag(int field, int wire_type) { varint(static_cast<uint64_t>(field << 3 | wire_type)); }
  std::string bytes_;
};

Message override_message(const std::string& name, const Option& option) {
  Message value;
  if (auto* s = std::get_if<std::string>(&option))
    value.string(1, *s);
  else if (auto* b = std::get_if<bool>(&option))
    value.integer(2, *b);
  else if (auto* i = std::get_if<int64_t>(&option))
    value.integer(3, *i);
  else if (auto* f = std::get_if<float>(&option))
    value.real(4, *f);
  else
    fail(ErrorKind::Value, "compiler option ", name, ": expected a string, bool, int or float");
  return Message().string(1, name).message(2, value);
}

Message assignment_message(const CompileOptions& o) {
  size_t replicas = static_cast<size_t>(o.num_replicas);
  size_t partitions = static_cast<size_t>(o.num_partitions);
  if (o.device_assignment.size() != replicas * partitions)
    fail(ErrorKind::Value, "device assignment: expected ", replicas * partitions, " devices, got ",
         o.device_assignment.size());
  Message m;
  m.integer(1, o.num_replicas).integer(2, o.num_partitions);
  for (size_t p = 0; p < partitions; ++p) {
    Message column;  // the devices of one partition, one for each replica
    for (size_t r = 0; r < replicas; ++r) column.integer(1, o.device_assignment[r * partitions + p]);
    m.message(3, column);
  }
  return m;
}

}  // namespace

std::string serialize(const CompileOptions& o) {
  Message build;
  build.integer(1, o.device_ordinal).integer(4, o.num_replicas).integer(5, o.num_partitions);
  if (o.use_spmd) build.integer(6, 1);
  if (!o.device_assignment.empty()) build.message(9, assignment_message(o));
  Message m;
  m.message(3, build);
  if (o.portable) m.integer(4, 1);
  for (const auto& [name, option] : o.env_overrides) m.message(7, override_message(name, option));
  return m.bytes();
}

}  // namespace tpu::pjrt
