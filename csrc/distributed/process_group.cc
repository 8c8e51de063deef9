// SPDX-License-Identifier: Apache-2.0
#include "distributed/process_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "aten/error.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "aten/trace.h"
#include "distributed/work.h"
#include "runtime/capture.h"
#include "runtime/executor.h"
#include "runtime/fuse.h"
#include "runtime/stream.h"

namespace tpu::distributed {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

bool on_device(const at::Tensor& t) { return t.device().type() == c10::DeviceType::PrivateUse1; }

void check_tensor(const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.defined(), "a collective got an undefined tensor");
  TORCH_CHECK_VALUE(t.layout() == at::kStrided, "collectives take dense tensors, got one of layout ", t.layout());
  TORCH_CHECK_VALUE(on_device(t) || t.device().is_cpu(), "this group takes tensors of tpu and cpu, got one on ",
                    t.device());
}

bool is_whole_storage(const at::Tensor& t) {
  return t.storage_offset() == 0 && t.is_contiguous() && !t.is_conj() && !t.is_neg() &&
         t.numel() * static_cast<int64_t>(t.itemsize()) == static_cast<int64_t>(t.storage().nbytes());
}

Array described(const at::Tensor& t) {
  check_tensor(t);
  Array array;
  array.dtype = t.scalar_type();
  array.sizes = t.sizes().vec();
  return array;
}

Array input(const at::Tensor& given) {
  Array array = described(given);
  const at::Tensor t = given.resolve_conj().resolve_neg().contiguous();
  if (!on_device(t)) {
    array.host = t.detach();
    return array;
  }
  array.value = aten::value_of(aten::slot_of(*t.storage().unsafeGetStorageImpl()));
  runtime::fuse::materialize(array.value);
  TORCH_CHECK(array.value->ready_to_use(), "a collective can't be part of a captured program");
  array.offset = t.storage_offset() * static_cast<int64_t>(t.itemsize());
  TORCH_CHECK(array.offset + array.bytes() <= array.value->type()->bytes(), "a tensor reaches ",
              array.offset + array.bytes(), " bytes into a storage of ", array.value->type()->bytes());
  return array;
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "a collective got tensors of ", a.scalar_type(), " and ",
                   b.scalar_type(), ": they must be of one dtype");
}

void check_count(size_t got, size_t wanted, const char* what) {
  TORCH_CHECK_VALUE(got == wanted, what, ": expected ", wanted, ", got ", got);
}

void check_rank(int64_t rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "rank ", rank, " is not in this group of ", size);
}

std::vector<int64_t> elements(const at::Tensor& t, std::vector<int64_t> splits, int size) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "Tensor's dim 0 does not divide equally across group size");
    splits.assign(static_cast<size_t>(size), rows / size);
  }
  check_count(splits.size(), static_cast<size_t>(size), "Number of tensor splits not equal to group size");
  int64_t sum = 0;
  for (int64_t split : splits) sum += split;
  TORCH_CHECK(sum == rows && std::all_of(splits.begin(), splits.end(), [](int64_t s) { return s >= 0; }),
              "Split sizes doesn't match total dim 0 size");
  const int64_t row = rows == 0 ? 0 : t.numel() / rows;
  for (int64_t& split : splits) split *= row;
  return splits;
}

struct Groups {
  std::mutex mutex;
  std::list<std::weak_ptr<Transport>> all;
};
Groups& groups() {
  static auto* instance = new Groups;
  return *instance;
}

}  // namespace

// A request under construction, with the tensors that its outputs go to.
struct ProcessGroup::Call {
  Request request;
  Tensors targets;                               // of the outputs, in order
  std::vector<std::pair<Tensor, Tensor>> later;  // host results that are copied when they are there: from, to
  bool host = false;                             // some tensor is the host's
  Tensors results;                               // what the work gives; mostly the targets

  Collective& part(Kind kind) {
    request.parts.emplace_back();
    request.parts.back().kind = kind;
    return request.parts.back();
  }
  void seen(const Tensor& t) {
    if (on_device(t))
      request.device = t.device().index();
    else
      host = true;
  }
  void read(const Tensor& t) {
    request.parts.back().inputs.push_back(input(t));
    seen(t);
  }
  void write(const Tensor& t) {
    Array array = described(t);
    seen(t);
    if (on_device(t)) {
      array.device = t.device().index();
    } else {
      array.host = t.is_contiguous() && !t.is_conj() && !t.is_neg() ? t.detach() : at::empty(t.sizes(), t.options());
      if (!array.host.is_alias_of(t)) later.emplace_back(array.host, t);
    }
    request.parts.back().outputs.push_back(std::move(array));
    targets.push_back(t);
  }
};

ProcessGroup::ProcessGroup(std::shared_ptr<Transport> transport, std::string name, int rank, int size,
                           milliseconds timeout)
    : Backend(rank, size),
      transport_(std::move(transport)),
      name_(std::move(name)),
      options_(c10::make_intrusive<Options>(name_, timeout)) {
  Groups& all = groups();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.all, [](const auto& group) { return group.expired(); });
  all.all.push_back(transport_);
}

ProcessGroup::~ProcessGroup() = default;

ProcessGroup::WorkPtr ProcessGroup::start(OpType type, Call call, milliseconds timeout) {
  TORCH_CHECK_NOT_IMPLEMENTED(!runtime::Capture::current(), "a collective can't be part of a captured program");
  Request& request = call.request;
  request.timeout = timeout == c10d::kUnsetTimeout || timeout == kNoTimeout ? options_->timeout : timeout;
  const Kind kind = request.parts[0].kind;
  const bool message = kind == Kind::Send || kind == Kind::Receive || kind == Kind::ReceiveAny;
  if (!message) ++sequence_;
  const bool blocking = call.host || kind == Kind::Send || kind == Kind::Barrier;
  if (call.results.empty()) call.results = call.targets;
  auto work = c10::make_intrusive<distributed::Work>(rank_, type, blocking, std::move(call.results));
  std::vector<runtime::ValueRef> values = aten::guarded([&] {
    return transport_->start(std::move(request),
                             [work, later = std::move(call.later)](std::exception_ptr failure, int source) {
                               at::AutoDispatchBelowADInplaceOrView guard;
                               if (!failure) {
                                 for (const auto& [from, to] : later) to.copy_(from);
                               }
                               work->complete(failure, source);
                             });
  });
  for (const runtime::ValueRef& value : values) runtime::after_launch(value->device(), value->buffer().ready());
  size_t next = 0;
  for (const Tensor& target : call.targets) {
    if (!on_device(target)) continue;
    const runtime::ValueRef& value = values[next++];
    const int device = target.device().index();
    aten::guarded([&] {
      if (is_whole_storage(target)) {
        aten::set_value(target.storage(), aten::slot_of(*target.storage().unsafeGetStorageImpl()), value);
      } else if (target.numel() > 0) {
        const auto strides = c10::contiguous_strides(target.sizes());
        target.copy_(
            aten::make_tensor(aten::make_storage(device, value), target.sizes(), strides, 0, target.scalar_type()));
      }
    });
  }
  work->started();
  if (coalescing_) coalesced_.push_back(work);
  if (runtime::eager_mode() == runtime::EagerMode::DeferNeverAndLaunchBlocking) work->finish_now();
  return work;
}

ProcessGroup::WorkPtr ProcessGroup::all_reduce(OpType type, Tensors& tensors, const c10d::AllreduceOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Call call;
  for (const Tensor& t : tensors) {
    check_reduction(opts.reduceOp, t.scalar_type());
    call.part(Kind::AllReduce).op = opts.reduceOp;
    call.read(t);
    call.write(t);
  }
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: requires at least one tensor");
  return start(type, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_count(tensors.size(), 1, "all_reduce: tensors of a rank");
  return all_reduce(OpType::ALLREDUCE, tensors, opts);
}

ProcessGroup::WorkPtr ProcessGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return all_reduce(OpType::ALLREDUCE_COALESCED, tensors, opts);
}

ProcessGroup::WorkPtr ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(tensors.size(), 1, "reduce: tensors of a rank");
  check_rank(opts.rootRank, size_);
  check_reduction(opts.reduceOp, tensors[0].scalar_type());
  Call call;
  Collective& part = call.part(Kind::Reduce);
  part.op = opts.reduceOp;
  part.peer = static_cast<int>(opts.rootRank);
  call.read(tensors[0]);
  if (rank_ == part.peer) call.write(tensors[0]);
  call.results = tensors;
  return start(OpType::REDUCE, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(tensors.size(), 1, "broadcast: tensors of a rank");
  check_rank(opts.rootRank, size_);
  Call call;
  Collective& part = call.part(Kind::Broadcast);
  part.peer = static_cast<int>(opts.rootRank);
  if (rank_ == part.peer)
    call.read(tensors[0]);
  else
    call.write(tensors[0]);
  call.results = tensors;
  return start(OpType::BROADCAST, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  check_count(inputs.size(), 1, "all_gather: tensors of a rank");
  check_count(outputs.size(), 1, "all_gather: lists of outputs");
  check_count(outputs[0].size(), static_cast<size_t>(size_), "all_gather: outputs, one a rank");
  at::AutoDispatchBelowADInplaceOrView guard;
  Call call;
  call.part(Kind::AllGather);
  call.read(inputs[0]);
  for (const Tensor& out : outputs[0]) {
    check_same_dtype(inputs[0], out);
    call.write(out);
  }
  TORCH_CHECK_VALUE(outputs[0][static_cast<size_t>(rank_)].numel() == inputs[0].numel(),
                    "all_gather: this rank's input has ", inputs[0].numel(), " elements, its output ",
                    outputs[0][static_cast<size_t>(rank_)].numel());
  return start(OpType::ALLGATHER, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), static_cast<size_t>(size_), "all_gather_coalesced: lists of outputs, one a rank");
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather_coalesced: requires at least one tensor");
  Call call;
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.part(Kind::AllGather);
    call.read(inputs[i]);
    for (const Tensors& list : outputs) {
      check_count(list.size(), inputs.size(), "all_gather_coalesced: outputs of a rank");
      check_same_dtype(inputs[i], list[i]);
      call.write(list[i]);
    }
  }
  return start(OpType::ALLGATHER_COALESCED, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::_allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroup::WorkPtr ProcessGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), inputs.size(), "all_gather_into_tensor: outputs");
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather_into_tensor: requires at least one tensor");
  Call call;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_same_dtype(inputs[i], outputs[i]);
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
    call.part(Kind::AllGather);
    call.read(inputs[i]);
    call.write(outputs[i]);
  }
  return start(OpType::_ALLGATHER_BASE, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(inputs.size(), 1, "gather: tensors of a rank");
  check_rank(opts.rootRank, size_);
  Call call;
  Collective& part = call.part(Kind::Gather);
  part.peer = static_cast<int>(opts.rootRank);
  const bool root = part.peer == rank_;
  call.read(inputs[0]);
  if (root) {
    check_count(outputs.size(), 1, "gather: lists of outputs at the root");
    check_count(outputs[0].size(), static_cast<size_t>(size_), "gather: outputs, one a rank");
    for (const Tensor& out : outputs[0]) {
      check_same_dtype(inputs[0], out);
      TORCH_CHECK_VALUE(out.numel() == inputs[0].numel(), "gather: outputs must be as large as the input, got ",
                        out.numel(), " elements for ", inputs[0].numel());
      call.write(out);
    }
  } else {
    check_count(outputs.size(), 0, "gather: outputs where the rank is not the root");
  }
  return start(OpType::GATHER, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), 1, "scatter: tensors of a rank");
  check_rank(opts.rootRank, size_);
  Call call;
  Collective& part = call.part(Kind::Scatter);
  part.peer = static_cast<int>(opts.rootRank);
  const bool root = part.peer == rank_;
  if (root) {
    check_count(inputs.size(), 1, "scatter: lists of inputs at the root");
    check_count(inputs[0].size(), static_cast<size_t>(size_), "scatter: inputs, one a rank");
    for (const Tensor& in : inputs[0]) {
      check_same_dtype(outputs[0], in);
      TORCH_CHECK_VALUE(in.numel() == outputs[0].numel(), "scatter: inputs must be as large as the output, got ",
                        in.numel(), " elements for ", outputs[0].numel());
      call.read(in);
    }
  } else {
    check_count(inputs.size(), 0, "scatter: inputs where the rank is not the root");
  }
  call.write(outputs[0]);
  return start(OpType::SCATTER, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                   const c10d::ReduceScatterOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), 1, "reduce_scatter: tensors of a rank");
  check_count(inputs.size(), 1, "reduce_scatter: lists of inputs");
  check_count(inputs[0].size(), static_cast<size_t>(size_), "reduce_scatter: inputs, one a rank");
  check_reduction(opts.reduceOp, outputs[0].scalar_type());
  Call call;
  call.part(Kind::ReduceScatter).op = opts.reduceOp;
  for (const Tensor& in : inputs[0]) {
    check_same_dtype(outputs[0], in);
    call.read(in);
  }
  TORCH_CHECK_VALUE(inputs[0][static_cast<size_t>(rank_)].numel() == outputs[0].numel(),
                    "reduce_scatter: this rank's output has ", outputs[0].numel(), " elements, its input ",
                    inputs[0][static_cast<size_t>(rank_)].numel());
  call.write(outputs[0]);
  return start(OpType::REDUCE_SCATTER, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::_reduce_scatter_base(Tensor& output, Tensor& input,
                                                         const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::ReduceScatterOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), inputs.size(), "reduce_scatter_tensor: outputs");
  TORCH_CHECK_VALUE(!inputs.empty(), "reduce_scatter_tensor: requires at least one tensor");
  Call call;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_same_dtype(inputs[i], outputs[i]);
    check_reduction(opts.reduceOp, inputs[i].scalar_type());
    TORCH_CHECK_VALUE(outputs[i].numel() * size_ == inputs[i].numel(),
                      "input tensor must be the same size as output size times world size");
    call.part(Kind::ReduceScatter).op = opts.reduceOp;
    call.read(inputs[i]);
    call.write(outputs[i]);
  }
  return start(OpType::_REDUCE_SCATTER_BASE, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(outputs.size(), static_cast<size_t>(size_), "all_to_all: outputs, one a rank");
  check_count(inputs.size(), static_cast<size_t>(size_), "all_to_all: inputs, one a rank");
  Call call;
  call.part(Kind::AllToAll);
  for (const Tensor& in : inputs) {
    check_same_dtype(inputs[0], in);
    call.read(in);
  }
  for (const Tensor& out : outputs) {
    check_same_dtype(inputs[0], out);
    call.write(out);
  }
  return start(OpType::ALLTOALL, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_same_dtype(input, output);
  Call call;
  Collective& part = call.part(Kind::AllToAll);
  part.give = elements(input, input_splits, size_);
  part.get = elements(output, output_splits, size_);
  call.read(input);
  call.write(output);
  return start(OpType::ALLTOALL_BASE, std::move(call), opts.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::send(Tensors& tensors, int to, int tag) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(tensors.size(), 1, "send: tensors");
  check_rank(to, size_);
  Call call;
  Collective& part = call.part(Kind::Send);
  part.peer = to;
  part.tag = tag;
  call.read(tensors[0]);
  call.results = tensors;
  return start(OpType::SEND, std::move(call), c10d::kUnsetTimeout);
}

ProcessGroup::WorkPtr ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(tensors.size(), 1, "recv: tensors");
  check_rank(from, size_);
  Call call;
  Collective& part = call.part(Kind::Receive);
  part.peer = from;
  part.tag = tag;
  call.write(tensors[0]);
  return start(OpType::RECV, std::move(call), c10d::kUnsetTimeout);
}

ProcessGroup::WorkPtr ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  at::AutoDispatchBelowADInplaceOrView guard;
  check_count(tensors.size(), 1, "recv: tensors");
  Call call;
  call.part(Kind::ReceiveAny).tag = tag;
  call.write(tensors[0]);
  return start(OpType::RECVANYSOURCE, std::move(call), c10d::kUnsetTimeout);
}

ProcessGroup::WorkPtr ProcessGroup::barrier(const c10d::BarrierOptions& opts) {
  Call call;
  call.part(Kind::Barrier);
  return start(OpType::BARRIER, std::move(call), opts.timeout);
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& opts, bool) { barrier(opts)->wait(); }

void ProcessGroup::startCoalescing() {
  coalesced_.clear();  // of a block that an exception left
  coalescing_ = true;
}

ProcessGroup::WorkPtr ProcessGroup::endCoalescing() {
  TORCH_CHECK(coalescing_, "coalescing has not been started");
  coalescing_ = false;
  return c10::make_intrusive<distributed::Works>(rank_, std::move(coalesced_));
}

void ProcessGroup::abort() { transport_->abort("it was aborted"); }

void ProcessGroup::shutdown() { transport_->drain(std::chrono::steady_clock::now() + options_->timeout); }

void drain_all(milliseconds limit) {
  std::vector<std::shared_ptr<Transport>> alive;
  {
    Groups& all = groups();
    std::lock_guard lock(all.mutex);
    for (const auto& group : all.all)
      if (auto transport = group.lock()) alive.push_back(std::move(transport));
  }
  const auto until = std::chrono::steady_clock::now() + limit;
  for (const auto& transport : alive) transport->drain(until);
}

}  // namespace tpu::distributed
