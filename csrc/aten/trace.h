// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aten/captured_control.h"
#include "aten/target.h"
#include "hlo/graph.h"
#include "hlo/loops.h"
#include "runtime/capture.h"
#include "runtime/slot.h"

namespace tpu::aten {

// A program that was traced but not run.
struct TracedProgram {
  std::string text;                // MLIR
  std::vector<hlo::Type> inputs;   // parameters in order
  std::vector<int> input_of;       // for each the call of Trace::input it came from; -1: none
  std::vector<hlo::Type> outputs;  // results in order, what was written to after them
  int donated = 0;                 // parameters whose memory a result reuses
  hlo::Products products;
  std::vector<hlo::Loop> loops;
};

// Runs PyTorch code on tensors without data and keeps what it would launch, on every thread, as one
// program for `target`. Nothing is computed; reading a value throws. One at a time in a process.
//
// A storage from before the trace that is written to gets its value back when the trace ends, and
// stands among the program's inputs and outputs.
class Trace {
 public:
  // Throws Error(Runtime) while another trace is on.
  Trace(const lowering::Target& target, int device);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  static Trace* current();  // null when none

  // A tensor of the device without data: the next input of the program. Where the strides leave gaps
  // or overlap it is contiguous.
  at::Tensor input(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
  // The program that gives `outputs` and the new values of all inputs written to.
  TracedProgram finish(const std::vector<at::Tensor>& outputs, const std::string& name);

  // Told by the kernel before `storage` gets a new value.
  void before_write(const c10::Storage& storage);

 private:
  struct Written {
    c10::Storage storage;
    runtime::ValueRef before;
  };
  void restore();

  int device_;
  hlo::Graph graph_;
  hlo::Value seed_, offset_;
  TargetScope target_;
  std::unique_ptr<runtime::Capture> capture_;
  std::unique_ptr<CaptureScope> scope_;
  std::vector<at::Tensor> inputs_;  // keeps their storages alive
  hlo::Values parameters_;          // of them
  std::vector<Written> written_;    // inputs, and storages from before
};

// Gives `slot`, which belongs to `storage`, a new value: every write of a tensor goes through here.
inline void set_value(const c10::Storage& storage, runtime::Slot& slot, runtime::ValueRef value) {
  if (Trace* trace = Trace::current()) [[unlikely]]
    trace->before_write(storage);
  slot.set(std::move(value));
}

}  // namespace tpu::aten
