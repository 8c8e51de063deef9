// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/collective.h"

namespace tpu::distributed {

// What a rank tells the others before a collective moves data, in a fixed number of bytes, so that ranks that call
// different ones notice instead of mixing up their data.
class Header {
 public:
  // Bytes of a header in a group of `size` ranks.
  static int64_t bytes(int size) {
    return static_cast<int64_t>(sizeof(Fixed) + 2 * sizeof(int64_t) * static_cast<size_t>(size));
  }
  // Writes the header of `request` to `memory`; `failure`: why this rank can't take part, or empty.
  static void write(const Request& request, uint64_t number, int size, const std::string& failure, uint8_t* memory);
  // Compares the headers of all ranks; returns what is wrong, alike on all of them, or "".
  static std::string compare(const uint8_t* memory, int size);
  // Of a message: whether what was sent is what is expected; else what is wrong. `bytes`: how much was sent.
  static std::string compare_message(const uint8_t* memory, const Request& expected, int64_t* bytes);

 private:
  struct Fixed {
    uint64_t failed, number, kind, hash, bytes;
    char text[216];
  };
};

// Says in the group's store that `rank` has left, and which ranks have not within a moment: those that died or stalled.
std::string missing_ranks(c10d::Store& store, int rank, int size);

}  // namespace tpu::distributed
