// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tpu::lowering {

// What a program is built for. The one place that knows: where an operator has two forms, the choice
// is a field here, and a row of the table in target.cc that says why. Values are the same in both.
struct Target {
  std::string name;  // "CPU", or a TPU generation as the compiler spells it: "TPU7x", "v6e"
  bool checked_values = true;
  bool int64_products = true;
  bool leading_batches = true;
  bool double_transforms = true;
  bool flipped_kernels = true;
  bool walked_windows = true;
  bool packed_sorts = true;
  bool scattered_positions = true;
  bool strip_sums = true;
  bool plain_extremes = true;
  bool plain_signature = true;  // made where text meets the compiler: pjrt/signature.h
  bool any_size = false;        // forms that don't depend on how large a dimension is, where those have a choice

  bool is_cpu() const { return name == "CPU"; }
};

// Virtual devices of the XLA CPU plugin.
const Target& cpu_target();
// A TPU of this generation; "TPU" where only the kind is known. Lives for the process.
const Target& tpu_target(std::string_view generation);
// The same with forms that are one for all sizes of a dimension.
const Target& any_size_target(const Target& target);

// One choice as the report of a compilation shows it.
struct Choice {
  const char* what;
  const char* form;  // the one the target takes
  const char* why;
};
std::vector<Choice> choices(const Target& target);

}  // namespace tpu::lowering
