// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace tpu::aten {

// Registers everything with PyTorch's dispatcher: the lowerings in all their forms, views, copies,
// factories, the CPU fallback, the allocator. Throws tpu::Error naming the file and line of a
// lowering that doesn't fit its schema. Call once, from the package's load().
void register_all();

// One registered overload, for `python -m torch_tpu op` and the coverage table.
struct Registered {
  std::string overload;  // "aten::add.out"
  std::string lowering;  // "add.Tensor"
  std::string file;
  int line;
};
const std::vector<Registered>& registered();

}  // namespace tpu::aten
