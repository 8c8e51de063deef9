// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/hash.h"

namespace tpu::runtime::disk_cache {

// Serialized executables in one folder shared by processes. A file is written under a temporary
// name and renamed, carries a checksum, and is dropped when it doesn't match. Every failure (full
// disk, read-only folder, truncated file) only means a miss; it is logged once and never thrown.
// The least recently used files go when the folder passes its bound.
std::optional<std::string> load(const Hash128& key);
void store(const Hash128& key, const std::string& content);
// Drops an entry that loaded but did not deserialize.
void discard(const Hash128& key);

struct Usage {
  int64_t files = 0, bytes = 0;
};
Usage usage();
std::string folder();  // empty when the cache is off
void clear();

}  // namespace tpu::runtime::disk_cache
