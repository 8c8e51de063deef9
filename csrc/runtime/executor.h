// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.h"
#include "runtime/slot.h"
#include "runtime/value.h"

namespace tpu::runtime {

enum class EagerMode : int { DeferNever = 0, DeferNeverAndLaunchBlocking = 1, DeferAndFuse = 2 };
EagerMode eager_mode();
void set_eager_mode(EagerMode mode);

// One operand of a launch. `slot`, if any: the slot that `value` was taken from. Where the plan reuses the
// operand's memory, the launch consumes the slot's value; the caller then sets the new one.
struct Operand {
  ValueRef value;
  Slot* slot = nullptr;
};

// Runs `plan` on `device` without waiting (debug mode: waits). `results` gets one value for each of
// the plan's results. Throws tpu::Error; on a throw no operand has been consumed.
void launch(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
            std::span<ValueRef> results);

// The same at once in every mode, but not under a capture; what operands wait for is run first.
void launch_now(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
                std::span<ValueRef> results);

// Processor seconds that launching `plan`'s program by itself takes of the calling thread: the mean of `times` launches
// in a row, results freed and nothing donated. For measurements; the plan takes operands alone.
double seconds_alone(Plan& plan, int device, std::span<const Operand> operands, int times);

// Uploads `bytes` of host memory laid out as `type`, dense row-major. Blocks until the host memory
// may be reused, unless `done` is given.
ValueRef upload(const void* data, const hlo::Type* type, int device, pjrt::Event* done = nullptr);

// Copies a value to host memory, dense row-major; blocks until it is there.
void download(const ValueRef& value, void* data);

// A copy of `value` on another device.
ValueRef transfer(const ValueRef& value, int device);

}  // namespace tpu::runtime
