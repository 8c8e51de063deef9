// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/collective.h"

namespace tpu::distributed {

// Between processes, by PyTorch's Gloo on host memory. Where the device's memory is the host's, as on virtual devices,
// Gloo reads operands where they lie and writes results where they will lie.
//
// Collectives run on one thread in the order of their calls. Messages run on a thread for each peer, direction and tag.
// Before data moves, the ranks compare what they are about to do.
//
// `gloo`: a group of the same ranks that nobody else uses. `store`: of the group, for finding out who is missing.
std::shared_ptr<Transport> gloo_transport(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store,
                                          std::string group);

}  // namespace tpu::distributed
