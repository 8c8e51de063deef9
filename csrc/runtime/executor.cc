// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <time.h>

#include <algorithm>
#include <atomic>

#include "base/env.h"
#include "base/error.h"
#include "runtime/capture.h"
#include "runtime/device.h"
#include "runtime/fuse.h"
#include "runtime/memory.h"
#include "runtime/metrics.h"
#include "runtime/profile.h"
#include "runtime/scalar.h"
#include "runtime/small_array.h"
#include "runtime/stream.h"

namespace tpu::runtime {
namespace {

using hlo::DType;

EagerMode initial_mode() {
  if (env::get_bool("TORCH_TPU_LAUNCH_BLOCKING")) return EagerMode::DeferNeverAndLaunchBlocking;
  if (env::get_bool("TORCH_TPU_DEFER_AND_FUSE")) return EagerMode::DeferAndFuse;
  return EagerMode::DeferNever;
}

std::atomic<EagerMode>& mode() {
  static std::atomic<EagerMode> value{initial_mode()};
  return value;
}

constexpr int64_t kMostLookedAt = 1 << 18;  // elements of an upload: a fraction of a millisecond

template <class T>
Range range_of(const void* data, int64_t count) {
  const auto* elements = static_cast<const T*>(data);
  const auto [low, high] = std::minmax_element(elements, elements + count);
  return {static_cast<int64_t>(*low), static_cast<int64_t>(*high)};
}

// Indices mostly come from the host: what they lie in is seen best there.
Range range_of(const void* data, const hlo::Type& type) {
  const int64_t count = type.numel();
  if (count == 0 || count > kMostLookedAt) return {};
  switch (type.dtype) {
    case DType::S64: return range_of<int64_t>(data, count);
    case DType::S32: return range_of<int32_t>(data, count);
    default: return {};
  }
}

// Processor time of the calling thread: what others do meanwhile does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr const char* kTraceEscaped =
    "the value of a tensor is needed while its function is being traced; values are known only when the program runs";

}  // namespace

EagerMode eager_mode() { return mode().load(std::memory_order_relaxed); }
void set_eager_mode(EagerMode m) {
  mode().store(m, std::memory_order_relaxed);
  if (m != EagerMode::DeferAndFuse) fuse::flush_all();
}

void launch(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
            std::span<ValueRef> results) {
  if (Capture* capture = Capture::current()) [[unlikely]] {
    capture->launch(plan, operands, scalars, results);
    return;
  }
  if (eager_mode() == EagerMode::DeferAndFuse) {
    fuse::record(plan, device, operands, scalars, results);
    return;
  }
  launch_now(plan, device, operands, scalars, results);
}

void launch_now(Plan& plan, int device, std::span<Operand> operands, std::span<const Scalar> scalars,
                std::span<ValueRef> results) {
  Runtime& runtime = Runtime::get();
  Program& program = plan.program();
  memory::reserve(device, plan.result_bytes + program.temporary_bytes);

  const size_t count = plan.params.size();
  SmallArray<PJRT_Buffer*, 16> args(count);
  SmallArray<ValueRef, 8> held(scalars.empty() ? 0 : count);
  for (size_t i = 0; i < count; ++i) {
    const Param& param = plan.params[i];
    if (param.from == Param::From::Operand) [[likely]] {
      const ValueRef& value = operands[static_cast<size_t>(param.index)].value;
      fuse::materialize(value);
      args[i] = value->buffer().handle();
      TPU_CHECK(args[i] != nullptr, plan.name, ": ", kTraceEscaped);
      TPU_CHECK(value->type() == param.type, plan.name, ": another thread changed a tensor's shape during the call");
    } else if (param.from == Param::From::Constant) {
      args[i] = plan.constants[static_cast<size_t>(param.index)]->buffer().handle();
    } else {
      held[i] = scalar_value(scalars[static_cast<size_t>(param.index)], param.type, device);
      args[i] = held[i]->buffer().handle();
    }
  }
  // An aliased parameter is consumed unless somebody else still holds its value.
  SmallArray<int64_t, 16> keep(plan.donated.size());
  SmallArray<Slot*, 16> consumed(plan.donated.size());
  size_t kept = 0, taken = 0;
  for (int i : plan.donated) {
    const Operand& operand = operands[static_cast<size_t>(plan.params[static_cast<size_t>(i)].index)];
    if (operand.slot && operand.slot->consume(operand.value)) {
      consumed[taken++] = operand.slot;
    } else {
      keep[kept++] = i;
    }
  }

  SmallArray<PJRT_Buffer*, 16> outs(results.size());
  pjrt::Event done;
  const int64_t queued = profile::on() ? profile::now() : 0;
  try {
    before_launch(device);
    program.executable.execute(args.data(), count, outs.data(), runtime.device(device), keep.data(), kept, &done);
  } catch (...) {
    for (size_t i = 0; i < taken; ++i) consumed[i]->keep();
    throw;
  }
  const PJRT_Api* api = runtime.client().api();
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = ValueRef(new DeviceValue(plan.results[i], device, pjrt::Buffer(api, outs[i])));
  }
  if (!plan.origins.empty()) set_ranges(plan, operands, scalars, results);
  metrics::count_launch();
  if (queued != 0) [[unlikely]]
    profile::launched(plan.name, device, queued, done);
  after_launch(device, std::move(done));
}

double seconds_alone(Plan& plan, int device, std::span<const Operand> operands, int times) {
  Runtime& runtime = Runtime::get();
  const Program& program = plan.program();
  std::vector<PJRT_Buffer*> args;
  for (const Param& param : plan.params) {
    TPU_CHECK(param.from == Param::From::Operand, plan.name, ": a program that takes numbers can't be timed alone");
    const ValueRef& value = operands[static_cast<size_t>(param.index)].value;
    fuse::materialize(value);
    args.push_back(value->buffer().handle());
  }
  const std::vector<int64_t> keep(plan.donated.begin(), plan.donated.end());
  std::vector<PJRT_Buffer*> outs(plan.results.size());
  const PJRT_Api* api = runtime.client().api();
  const double start = thread_seconds();
  for (int i = 0; i < times; ++i) {
    pjrt::Event done;
    program.executable.execute(args.data(), args.size(), outs.data(), runtime.device(device), keep.data(), keep.size(),
                               &done);
    for (PJRT_Buffer* out : outs) pjrt::Buffer freed(api, out);
  }
  return (thread_seconds() - start) / times;
}

ValueRef upload(const void* data, const hlo::Type* type, int device, pjrt::Event* done) {
  Runtime& runtime = Runtime::get();
  metrics::count_transfer();
  memory::reserve(device, type->bytes());
  const int64_t started = profile::on() ? profile::now() : 0;
  using HostUse = pjrt::Client::HostUse;
  pjrt::Buffer buffer =
      runtime.client().from_host(data, pjrt_type(type->dtype), type->dims.data(), type->dims.size(),
                                 runtime.device(device), done ? HostUse::UntilDone : HostUse::DuringCall, done);
  ValueRef value(new DeviceValue(type, device, std::move(buffer)));
  value->set_range(range_of(data, *type));
  if (started != 0) [[unlikely]]
    profile::transferred(profile::Span::Kind::Upload, device, started, type->bytes());
  return value;
}

void download(const ValueRef& value, void* data) {
  const size_t bytes = static_cast<size_t>(value->type()->bytes());
  if (bytes == 0) return;
  metrics::count_transfer();
  fuse::materialize(value);
  TPU_CHECK(value->ready_to_use(), kTraceEscaped);
  const int64_t started = profile::on() ? profile::now() : 0;
  value->buffer().read(data, bytes);
  if (started != 0) [[unlikely]]
    profile::transferred(profile::Span::Kind::Download, value->device(), started, value->type()->bytes());
}

ValueRef transfer(const ValueRef& value, int device) {
  if (value->device() == device) return value;
  fuse::materialize(value);
  TPU_CHECK(value->ready_to_use(), kTraceEscaped);
  memory::reserve(device, value->type()->bytes());
  ValueRef copy(new DeviceValue(value->type(), device, value->buffer().copy_to(Runtime::get().device(device))));
  copy->set_range(value->range());
  return copy;
}

}  // namespace tpu::runtime
