// SPDX-License-Identifier: Apache-2.0
#include "base/location.h"

#include <atomic>

namespace tpu {
namespace {
std::atomic<std::string (*)()> known_source{nullptr};
}

std::string user_location() {
  const auto source = known_source.load();
  return source ? source() : std::string();
}

void set_location_source(std::string (*source)()) { known_source.store(source); }

}  // namespace tpu
