// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tpu::runtime {

// Where to part a sequence of operators so that long parts of it are alike: the layers of a network then share one
// program, which is compiled once. `kinds`: what the operators are; `crossing[i]`: bytes that would pass from before
// operator i to it and those after it; `shortest`: operators in a part that is worth a launch of its own.
// Returns ascending positions in (0, kinds.size()); none where nothing repeats.
std::vector<size_t> part_at_repeats(std::span<const uint64_t> kinds, std::span<const int64_t> crossing,
                                    size_t shortest);

}  // namespace tpu::runtime
