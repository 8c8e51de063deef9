// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "distributed/collective.h"

namespace tpu::distributed {

// The c10d backend of the device: turns calls with tensors into requests to a transport.
//
// A collective on the device's tensors takes its place among the operators. It reads what the tensors held when it was
// called, and its results are there for whatever is launched later, so that nothing blocks Python. wait() on its work
// returns at once; what went wrong is raised by whoever reads the results, by synchronize(), by wait() with a timeout
// and by the next collective of the group. Barriers, sends and host tensors are waited for.
class ProcessGroup final : public c10d::Backend {
 public:
  ProcessGroup(std::shared_ptr<Transport> transport, std::string name, int rank, int size,
               std::chrono::milliseconds timeout);
  ~ProcessGroup() override;

  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override;
  void shutdown() override;  // waits for what is under way

 private:
  struct Call;
  WorkPtr start(c10d::OpType type, Call call, std::chrono::milliseconds timeout);
  WorkPtr all_reduce(c10d::OpType type, Tensors& tensors, const c10d::AllreduceOptions& opts);

  const std::shared_ptr<Transport> transport_;
  const std::string name_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

// Waits for what all groups have under way, for at most `limit`; called before the process ends.
void drain_all(std::chrono::milliseconds limit);

}  // namespace tpu::distributed
