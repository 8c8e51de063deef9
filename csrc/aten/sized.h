// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <span>

namespace torch {
class Library;
}

// Operators whose output size depends on data. The size is read once from the device; then a program
// made for the next power of two runs, and the result is a view of its beginning: no new program for
// every count.
namespace tpu::aten {

void define_sized(torch::Library& library);    // schemas of namespace tpu
void register_sized(torch::Library& library);  // aten's operators

// The true part of a padded result.
struct Narrowed {
  int64_t dim;
  int64_t size;
};
at::Tensor narrow_result(const at::Tensor& padded, const Narrowed& to);

// Replaces the bool and uint8 masks among the indices, args[1], by positions, as x[mask] means
// x[mask.nonzero()]. With `may_pad` the positions may be padded: the result must then be narrowed.
// A single mask that takes one value, args[2], in all its places stays: the lowering selects.
std::optional<Narrowed> expand_masks(std::span<c10::IValue> args, bool may_pad);

}  // namespace tpu::aten
