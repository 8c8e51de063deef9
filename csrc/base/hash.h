// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tpu {

// A 128-bit structural hash: two independent 64-bit multiply-fold lanes. Not cryptographic; wide
// enough that equal hashes are taken as equal content in the disk cache.
class Hash128 {
 public:
  void add(uint64_t word) {
    lo_ = fold(lo_ ^ word, 0x9E3779B97F4A7C15ull);
    hi_ = fold(hi_ ^ word, 0xC2B2AE3D27D4EB4Full) + 0x165667B19E3779F9ull;
  }
  void add(std::string_view bytes) {
    add(bytes.size());
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      add(word);
    }
    uint64_t tail = 0;
    if (i < bytes.size()) std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
    add(tail);
  }
  uint64_t lo() const { return lo_; }
  uint64_t hi() const { return hi_; }
  // 32 lower-case hex digits.
  std::string hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out(32, '0');
    for (int i = 0; i < 16; ++i) {
      out[15 - i] = kDigits[(hi_ >> (4 * i)) & 15];
      out[31 - i] = kDigits[(lo_ >> (4 * i)) & 15];
    }
    return out;
  }
  bool operator==(const Hash128&) const = default;

 private:
  // Every bit of `a` counts: texts may differ in the lowest bit of one word ("0" and "1").
  static uint64_t fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  uint64_t lo_ = 0x243F6A8885A308D3ull;
  uint64_t hi_ = 0x13198A2E03707344ull;
};

}  // namespace tpu
