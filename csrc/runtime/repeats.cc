// SPDX-License-Identifier: Apache-2.0
#include "runtime/repeats.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace tpu::runtime {
namespace {

constexpr size_t kPeriods = 8;  // that are tried: the likeliest

struct Repeat {
  size_t begin = 0, length = 0;  // the operators that repeat
  size_t period = 0, part = 0;   // a part is a number of whole periods
  size_t saved() const { return length - part; }
};

// Distances at which operators come again, those that explain most of the sequence first.
std::vector<size_t> likely_periods(std::span<const uint64_t> kinds) {
  std::unordered_map<uint64_t, size_t> last;
  std::map<size_t, size_t> votes;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto [it, fresh] = last.try_emplace(kinds[i], i);
    if (!fresh) ++votes[i - std::exchange(it->second, i)];
  }
  std::vector<size_t> periods;
  for (const auto& [distance, count] : votes) periods.push_back(distance);
  std::stable_sort(periods.begin(), periods.end(),
                   [&](size_t a, size_t b) { return a * votes.at(a) > b * votes.at(b); });
  if (periods.size() > kPeriods) periods.resize(kPeriods);
  return periods;
}

// The longest stretch that repeats with this period.
Repeat longest(std::span<const uint64_t> kinds, size_t period, size_t shortest) {
  Repeat best{0, 0, period, period * ((shortest + period - 1) / period)};
  size_t begin = 0;
  for (size_t i = 0; i + period <= kinds.size(); ++i) {
    if (i + period < kinds.size() && kinds[i] == kinds[i + period]) continue;
    if (i > begin && i + period - begin > best.length) {
      best.begin = begin;
      best.length = i + period - begin;
    }
    begin = i + 1;
  }
  return best;
}

void part(std::span<const uint64_t> kinds, std::span<const int64_t> crossing, size_t shortest, size_t offset,
          std::vector<size_t>& cuts) {
  if (kinds.size() < 2 * shortest) return;
  Repeat best;
  for (size_t period : likely_periods(kinds)) {
    const Repeat found = longest(kinds, period, shortest);
    if (found.length >= 2 * found.part && (best.length == 0 || found.saved() > best.saved())) best = found;
  }
  if (best.length == 0) return;
  // A period may begin anywhere in it: where least passes over.
  size_t begin = best.begin;
  const size_t spare = best.length - 2 * best.part;
  for (size_t i = best.begin; i < best.begin + best.period && i <= best.begin + spare; ++i) {
    if (crossing[i] < crossing[begin]) begin = i;
  }
  const size_t end = begin + (best.begin + best.length - begin) / best.part * best.part;
  part(kinds.subspan(0, begin), crossing, shortest, offset, cuts);
  for (size_t i = begin; i <= end; i += best.part) {
    if (offset + i > 0) cuts.push_back(offset + i);
  }
  part(kinds.subspan(end), crossing.subspan(end), shortest, offset + end, cuts);
}

}  // namespace

std::vector<size_t> part_at_repeats(std::span<const uint64_t> kinds, std::span<const int64_t> crossing,
                                    size_t shortest) {
  std::vector<size_t> cuts;
  part(kinds, crossing, shortest, 0, cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  while (!cuts.empty() && cuts.back() >= kinds.size()) cuts.pop_back();
  return cuts;
}

}  // namespace tpu::runtime
