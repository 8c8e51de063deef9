// SPDX-License-Identifier: Apache-2.0
#include "distributed/work.h"

#include <algorithm>

namespace tpu::distributed {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> new_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

Work::Work(int rank, c10d::OpType type, bool blocking, std::vector<at::Tensor> results)
    : c10d::Work(rank, type), blocking_(blocking), results_(std::move(results)), future_(new_future()) {}

void Work::complete(std::exception_ptr failure, int source) {
  {
    std::lock_guard lock(mutex_);
    source_ = source;
    completed_ = true;
    exception_ = failure;
  }
  cv_.notify_all();
  if (!blocking_) return;
  if (failure)
    future_->setError(failure);
  else
    future_->markCompleted(c10::IValue(results_));
}

void Work::started() {
  if (!blocking_) future_->markCompleted(c10::IValue(results_));
}

void Work::finish_now() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
  if (exception_) std::rethrow_exception(exception_);
}

bool Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return completed_; };
  if (timeout != kNoTimeout) {
    TORCH_CHECK_WITH(DistBackendError, cv_.wait_for(lock, timeout, done), c10d::opTypeToString(opType_),
                     ": not done within ", timeout.count(), " ms");
  } else if (blocking_) {
    cv_.wait(lock, done);
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

int Work::sourceRank() const {
  auto* self = const_cast<Work*>(this);
  self->finish_now();
  return source_;
}

Works::Works(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

bool Works::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
}

bool Works::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr Works::exception() const {
  for (const auto& part : parts_) {
    if (std::exception_ptr found = part->exception()) return found;
  }
  return nullptr;
}

bool Works::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

std::vector<at::Tensor> Works::result() {
  std::vector<at::Tensor> out;
  for (const auto& part : parts_) {
    for (const at::Tensor& tensor : part->result()) out.push_back(tensor);
  }
  return out;
}

c10::intrusive_ptr<c10::ivalue::Future> Works::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  auto out = new_future();
  c10::collectAll(futures)->addCallback([out, parts = parts_](c10::ivalue::Future& all) {
    if (all.hasError()) {
      out->setError(all.exception_ptr());
      return;
    }
    std::vector<at::Tensor> results;
    for (const auto& part : parts) {
      for (const at::Tensor& tensor : part->result()) results.push_back(tensor);
    }
    out->markCompleted(c10::IValue(std::move(results)));
  });
  return out;
}

}  // namespace tpu::distributed
