// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "runtime/value.h"

// A collective between the ranks of a group, as one of them sees it, apart from how its data travels.
namespace tpu::distributed {

enum class Kind : uint8_t {
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Send,
  Receive,
  ReceiveAny,
  Barrier
};

// A dense row-major array: of the device, or of the host where `host` is defined.
struct Array {
  at::ScalarType dtype = at::ScalarType::Byte;
  std::vector<int64_t> sizes;
  // An input of the device: where it begins in `value`, which is never written to again.
  runtime::ValueRef value;
  int64_t offset = 0;  // bytes
  // An output of the device.
  int device = 0;
  at::Tensor host;

  int64_t numel() const;
  int64_t bytes() const;
  std::string text() const;  // "float32[2, 8]"
};

// What this rank gives and gets. n: the number of ranks.
//   AllReduce      one input, one output of its size
//   Reduce         one input; at the root one output
//   Broadcast      at the root one input, elsewhere one output
//   AllGather      one input; one output of all ranks' in turn, or n outputs, which may differ in size
//   Gather         one input; at the root n outputs
//   Scatter        at the root n inputs; one output
//   ReduceScatter  one input that is n outputs in turn, or n inputs, which may differ in size; one output
//   AllToAll       n inputs and n outputs, or one of each, divided by `give` and `get` (elements)
//   Send, Receive, ReceiveAny   one input or output
//   Barrier        nothing
struct Collective {
  Kind kind = Kind::Barrier;
  c10d::ReduceOp op;
  int peer = 0;  // the root, or the other rank
  int tag = 0;   // of Send and Receive
  std::vector<Array> inputs, outputs;
  std::vector<int64_t> give, get;

  // "all_reduce(SUM) of float32[2, 8]"
  std::string text() const;
};

// Some collectives of one kind that run as one.
struct Request {
  std::vector<Collective> parts;
  std::chrono::milliseconds timeout{0};
  int device = -1;  // whose streams see its end; -1: none
  std::string text() const;
};

// Throws where c10d has no such reduction.
void check_reduction(const c10d::ReduceOp& op, at::ScalarType dtype);

// How the data travels. One for each group; its functions may be called from any thread.
class Transport {
 public:
  // `failure`: null where all went well. `source`: of a ReceiveAny. Called once, in any thread.
  using Done = std::function<void(std::exception_ptr failure, int source)>;

  virtual ~Transport() = default;
  // Takes its place behind what was started before and returns at once. What the operators launched before wrote is
  // read; gives the new values of the outputs on the device, which later launches wait for; where there are none, an
  // empty value that stands for the end. Host outputs are written before `done` is called. Throws where it can't be
  // started, and where the group has failed before.
  virtual std::vector<runtime::ValueRef> start(Request request, Done done) = 0;
  // Waits until everything is done; false where `until` comes first.
  virtual bool drain(std::chrono::steady_clock::time_point until) = 0;
  // Fails what is under way and all that would come.
  virtual void abort(const std::string& why) = 0;
};

}  // namespace tpu::distributed
