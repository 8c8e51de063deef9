// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/value.h"

// Fused eager (DEFER_AND_FUSE). Launches are recorded, one graph a device, and run as one program when
// the graph is cut. Nothing changes for the user: a value that is read is computed first.
//
// What is cut may become several programs: equal layers of a network share one, what has another size in each step
// stands apart from what has not, and XLA's CPU compiler is kept from computing large values twice. Where those ends
// are known from earlier rounds, the device starts on what stands before while the rest is still recorded.
//
// Cuts: a value is needed on the host or by another device; a stream is waited for; the graph repeats
// how it began, so that a loop settles into the same programs; or it has grown to a limit of operators
// or bytes. A cut graph is known by its plans and their wiring: scalars and offsets are operands.
// A program that fails is run again operator by operator: the error names the one it came from, and only
// what depends on it is lost. Values that nobody holds any more are not computed. The memory of an input that nobody
// else holds goes to the result that replaces it.
//
// Thread-safe: one lock a device, held while a graph is compiled and launched. Never takes the GIL.
namespace tpu::runtime::fuse {

// Defers `plan`; `results` get pending values. Throws where a cut that becomes due fails.
void record(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
            std::span<ValueRef> results);

// Runs what `value` waits for; returns at once for one that waits for nothing. Throws what its operator
// failed with; so does every later use of the value.
void materialize_pending(const ValueRef& value);
inline void materialize(const ValueRef& value) {
  if (!value->ready_to_use()) [[unlikely]]
    materialize_pending(value);
}

// Runs all that is deferred on `device`.
void flush(int device);
void flush_all();

}  // namespace tpu::runtime::fuse
