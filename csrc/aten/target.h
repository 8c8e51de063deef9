// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/target.h"

namespace tpu::aten {

// What operators are lowered for at present: the device's own kind, or a TPU topology that programs
// are checked against or compiled for. The same in all threads.
const lowering::Target& target();

// Lowers for `target` until destroyed. The plans of different targets are kept apart.
class TargetScope {
 public:
  explicit TargetScope(const lowering::Target& target);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  const lowering::Target* outer_;
};

// The same for what this thread traces: forms that don't depend on how large a dimension is.
class AnySizeScope {
 public:
  AnySizeScope();
  ~AnySizeScope();
  AnySizeScope(const AnySizeScope&) = delete;
  AnySizeScope& operator=(const AnySizeScope&) = delete;

 private:
  const lowering::Target* outer_;
};

// The target that a scope sets, or null: part of the key of plans.
const lowering::Target* scoped_target();

}  // namespace tpu::aten
