// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision.h"

#include <atomic>

namespace tpu::runtime {
namespace {
std::atomic<bool> excess{false};
}

bool allow_excess_precision() { return excess.load(std::memory_order_relaxed); }
void set_allow_excess_precision(bool allow) { excess.store(allow, std::memory_order_relaxed); }

}  // namespace tpu::runtime
