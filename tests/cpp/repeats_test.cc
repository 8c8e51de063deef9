// SPDX-License-Identifier: Apache-2.0
// Where sequences of operators are parted: csrc/runtime/repeats.h.
#include "runtime/repeats.h"

#include <cstdio>

using tpu::runtime::part_at_repeats;

namespace {

int failures = 0;

using Positions = std::vector<size_t>;

void expect(const char* what, const Positions& found, const Positions& wanted) {
  if (found == wanted) return;
  std::fprintf(stderr, "%s: parted at", what);
  for (size_t i : found) std::fprintf(stderr, " %zu", i);
  std::fprintf(stderr, "\n");
  ++failures;
}

// `before` operators, then `layers` times `width` operators, then `after`; all others differ.
std::vector<uint64_t> network(size_t before, size_t layers, size_t width, size_t after) {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < before; ++i) out.push_back(1000 + i);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t i = 0; i < width; ++i) out.push_back(i % 7 == 3 ? 5 : 10 + i);  // an operator that comes often
  }
  for (size_t i = 0; i < after; ++i) out.push_back(2000 + i);
  return out;
}

Positions parted(const std::vector<uint64_t>& kinds, size_t shortest, std::vector<int64_t> crossing = {}) {
  crossing.resize(kinds.size());
  return part_at_repeats(kinds, crossing, shortest);
}

}  // namespace

int main() {
  expect("nothing", parted({}, 4), {});
  expect("no repeats", parted(network(40, 0, 0, 0), 4), {});
  expect("too short to part", parted(network(0, 3, 10, 0), 16), {});
  expect("layers", parted(network(3, 4, 20, 6), 16), {3, 23, 43, 63, 83});
  expect("parts of several layers", parted(network(3, 6, 10, 6), 16), {3, 23, 43, 63});
  expect("layers that fill no part", parted(network(3, 5, 10, 6), 16), {3, 23, 43});
  expect("all the same", parted(std::vector<uint64_t>(64, 7), 16), {16, 32, 48});
  // Two networks in one sequence, as the layers forward and backward are.
  std::vector<uint64_t> both = network(3, 4, 20, 6);
  for (uint64_t kind : network(0, 4, 18, 2)) both.push_back(kind + 5000);
  expect("two stretches", parted(both, 16), {3, 23, 43, 63, 83, 89, 107, 125, 143, 161});
  // Layers begin where least passes over: at every fifth operator of a layer here.
  std::vector<int64_t> crossing(89, 100);
  for (size_t i = 8; i < crossing.size(); i += 20) crossing[i] = 1;
  expect("where least passes over", parted(network(3, 4, 20, 6), 16, crossing), {8, 28, 48, 68});
  if (failures == 0) std::puts("ok");
  return failures == 0 ? 0 : 1;
}
