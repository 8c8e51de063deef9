// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tpu::distributed {

// One request that was started. On the device's tensors wait() returns at once unless it is given a timeout: whatever
// is launched later waits for the results by itself. The future is complete as soon as the results may be used so.
class Work final : public c10d::Work {
 public:
  // `blocking`: wait() waits, and the future is completed by the end of the work.
  Work(int rank, c10d::OpType type, bool blocking, std::vector<at::Tensor> results);

  // Called by the transport, once, in any thread.
  void complete(std::exception_ptr failure, int source);
  // The tensors have their new values.
  void started();
  // Waits, and throws what went wrong.
  void finish_now();

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  int sourceRank() const override;  // waits
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const bool blocking_;
  int source_ = -1;
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several works as one.
class Works final : public c10d::Work {
 public:
  Works(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace tpu::distributed
