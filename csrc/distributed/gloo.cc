// SPDX-License-Identifier: Apache-2.0
#include "distributed/gloo.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "aten/error.h"
#include "aten/storage.h"
#include "base/log.h"
#include "distributed/agreement.h"
#include "distributed/host_reduce.h"
#include "distributed/lane.h"
#include "distributed/promised.h"

namespace tpu::distributed {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

// The ranks noticed before any data moved: the group goes on.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Host memory of an array while its collective runs.
struct Memory {
  void* data;
  int64_t numel;
  at::ScalarType dtype;

  size_t size() const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
  Tensor typed() const { return at::from_blob(data, {numel}, at::TensorOptions(dtype)); }
  // Data that only moves travels as bytes: Gloo doesn't know every dtype.
  Tensor bytes() const { return at::from_blob(data, {static_cast<int64_t>(size())}, at::TensorOptions(at::kByte)); }
};
using Memories = std::vector<Memory>;

void copy(const Memory& from, const Memory& to) {
  if (from.data != to.data && from.size() > 0) std::memcpy(to.data, from.data, from.size());
}

Tensors bytes_of(const Memories& memories) {
  Tensors out;
  for (const Memory& memory : memories) out.push_back(memory.bytes());
  return out;
}

std::string text_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find("\nException raised"));
}

struct Job {
  Request request;
  Transport::Done done;
  std::vector<Promised> promised;  // of the outputs on the device, in order
  std::vector<std::unique_ptr<char[]>> staged;
  int source = -1;
};

// One part of a job, run with Gloo. All ranks have agreed on it.
class Part {
 public:
  Part(c10d::Backend& gloo, const Collective& what, Memories in, Memories out, std::chrono::milliseconds timeout)
      : gloo_(gloo), what_(what), in_(std::move(in)), out_(std::move(out)), timeout_(timeout) {}

  void run() {
    if (gloo_.getSize() == 1) return alone();
    switch (what_.kind) {
      case Kind::AllReduce: return all_reduce();
      case Kind::Reduce: return reduce();
      case Kind::Broadcast: return broadcast(what_.peer, is_root() ? in_[0] : out_[0]);
      case Kind::AllGather: return all_gather();
      case Kind::Gather: return gather();
      case Kind::Scatter: return scatter();
      case Kind::ReduceScatter: return reduce_scatter();
      case Kind::AllToAll: return all_to_all();
      default: return;
    }
  }

 private:
  bool is_root() const { return gloo_.getRank() == what_.peer; }
  int64_t n() const { return gloo_.getSize(); }

  template <class Options>
  Options options() const {
    Options options;
    options.timeout = timeout_;
    return options;
  }

  void alone() {
    size_t at = 0;
    for (const Memory& out : out_) {
      if (in_.size() == out_.size())
        copy(in_[at++], out);
      else if (!in_.empty())
        copy({in_[0].data, out.numel, out.dtype}, out);
      Tensor data = out.typed();
      if (what_.kind == Kind::AllReduce || what_.kind == Kind::Reduce || what_.kind == Kind::ReduceScatter)
        before_sum(what_.op, data);
    }
  }

  void all_reduce() {
    const Memory& in = in_[0];
    const Memory& out = out_[0];
    if (in.numel == 0) return;
    if (!gloo_reduces(what_.op, in.dtype)) return all_reduce_in_shares();
    copy(in, out);
    Tensors data{out.typed()};
    before_sum(what_.op, data[0]);
    auto options = this->options<c10d::AllreduceOptions>();
    options.reduceOp = plain(what_.op);
    gloo_.allreduce(data, options)->wait();
    after_sum(what_.op, data[0], n());
  }

  // Each rank reduces its share of the elements, and all gather the shares.
  void all_reduce_in_shares() {
    const Memory& in = in_[0];
    const int64_t share = (in.numel + n() - 1) / n();
    const auto width = static_cast<int64_t>(c10::elementSize(in.dtype));
    Tensor padded = at::zeros({share * n() * width}, at::TensorOptions(at::kByte));
    std::memcpy(padded.mutable_data_ptr(), in.data, in.size());
    Tensor rows = at::empty({n(), share}, at::TensorOptions(in.dtype));
    exchange(padded, rows.view({-1}).view(at::kByte));
    Tensor own = at::empty({share}, at::TensorOptions(in.dtype));
    reduce_rows(what_.op, rows, own);
    Tensor mine = own.view(at::kByte);
    gloo_._allgather_base(padded, mine, options<c10d::AllgatherOptions>())->wait();
    std::memcpy(out_[0].data, padded.const_data_ptr(), out_[0].size());
  }

  void reduce() {
    const Memory& in = in_[0];
    if (in.numel == 0) return;
    if (!gloo_reduces(what_.op, in.dtype)) {
      Tensors rows;
      if (is_root()) {
        for (int64_t r = 0; r < n(); ++r) rows.push_back(at::empty({in.numel}, at::TensorOptions(in.dtype)));
      }
      Memories parts;
      for (Tensor& row : rows) parts.push_back({row.mutable_data_ptr(), in.numel, in.dtype});
      gather(parts);
      if (!is_root()) return;
      Tensor out = out_[0].typed();
      reduce_rows(what_.op, at::stack(rows), out);
      return;
    }
    // Gloo writes to the operand on every rank.
    Tensor scratch;
    if (!is_root()) scratch = at::empty({in.numel}, at::TensorOptions(in.dtype));
    const Memory out = is_root() ? out_[0] : Memory{scratch.mutable_data_ptr(), in.numel, in.dtype};
    copy(in, out);
    Tensors data{out.typed()};
    before_sum(what_.op, data[0]);
    auto options = this->options<c10d::ReduceOptions>();
    options.reduceOp = plain(what_.op);
    options.rootRank = what_.peer;
    gloo_.reduce(data, options)->wait();
    if (is_root()) after_sum(what_.op, data[0], n());
  }

  void broadcast(int root, const Memory& memory) {
    if (memory.size() == 0) return;
    Tensors data{memory.bytes()};
    auto options = this->options<c10d::BroadcastOptions>();
    options.rootRank = root;
    gloo_.broadcast(data, options)->wait();
  }

  void all_gather() {
    if (out_.size() == 1) {
      if (out_[0].size() == 0) return;
      Tensor in = in_[0].bytes(), out = out_[0].bytes();
      gloo_._allgather_base(out, in, options<c10d::AllgatherOptions>())->wait();
      return;
    }
    bool even = true;
    for (const Memory& out : out_) even = even && out.size() == out_[0].size();
    if (even && out_[0].size() > 0) {
      std::vector<Tensors> outs{bytes_of(out_)};
      Tensors ins{in_[0].bytes()};
      gloo_.allgather(outs, ins, options<c10d::AllgatherOptions>())->wait();
      return;
    }
    for (int r = 0; r < static_cast<int>(n()); ++r) {
      if (r == gloo_.getRank()) copy(in_[0], out_[static_cast<size_t>(r)]);
      broadcast(r, out_[static_cast<size_t>(r)]);
    }
  }

  void gather() { gather(out_); }
  void gather(const Memories& parts) {
    if (in_[0].size() == 0) return;
    Tensors ins{in_[0].bytes()};
    std::vector<Tensors> outs;
    if (is_root()) outs.push_back(bytes_of(parts));
    auto options = this->options<c10d::GatherOptions>();
    options.rootRank = what_.peer;
    gloo_.gather(outs, ins, options)->wait();
  }

  void scatter() {
    if (out_[0].size() == 0) return;
    Tensors outs{out_[0].bytes()};
    std::vector<Tensors> ins;
    if (is_root()) ins.push_back(bytes_of(in_));
    auto options = this->options<c10d::ScatterOptions>();
    options.rootRank = what_.peer;
    gloo_.scatter(outs, ins, options)->wait();
  }

  // Each rank gets its rows and reduces them.
  void reduce_scatter() {
    const Memory& out = out_[0];
    Tensor rows = at::empty({n(), out.numel}, at::TensorOptions(out.dtype));
    if (in_.size() == 1) {
      exchange(in_[0].bytes(), rows.view({-1}).view(at::kByte));
    } else {
      Memories parts;
      auto* start = static_cast<char*>(rows.mutable_data_ptr());
      for (int64_t r = 0; r < n(); ++r)
        parts.push_back({start + r * static_cast<int64_t>(out.size()), out.numel, out.dtype});
      exchange(in_, parts);
    }
    if (out.numel == 0) return;
    Tensor result = out.typed();
    reduce_rows(what_.op, rows, result);
  }

  void all_to_all() {
    if (what_.give.empty()) return exchange(in_, out_);
    Tensor in = in_[0].bytes(), out = out_[0].bytes();
    const auto width = static_cast<int64_t>(c10::elementSize(in_[0].dtype));
    std::vector<int64_t> give = what_.give, get = what_.get;
    for (int64_t& count : give) count *= width;
    for (int64_t& count : get) count *= width;
    gloo_.alltoall_base(out, in, get, give, options<c10d::AllToAllOptions>())->wait();
  }

  void exchange(Tensor in, Tensor out) {
    if (in.numel() == 0) return;
    std::vector<int64_t> even;
    gloo_.alltoall_base(out, in, even, even, options<c10d::AllToAllOptions>())->wait();
  }

  // Arrays that lie apart are put together first.
  void exchange(const Memories& ins, const Memories& outs) {
    std::vector<int64_t> give, get;
    for (const Memory& in : ins) give.push_back(static_cast<int64_t>(in.size()));
    for (const Memory& out : outs) get.push_back(static_cast<int64_t>(out.size()));
    Tensor in = at::cat(bytes_of(ins));
    Tensor out = at::empty({std::accumulate(get.begin(), get.end(), int64_t{0})}, at::TensorOptions(at::kByte));
    gloo_.alltoall_base(out, in, get, give, options<c10d::AllToAllOptions>())->wait();
    const auto* from = static_cast<const char*>(out.const_data_ptr());
    for (const Memory& memory : outs) {
      if (memory.size()) std::memcpy(memory.data, from, memory.size());
      from += memory.size();
    }
  }

  c10d::Backend& gloo_;
  const Collective& what_;
  Memories in_, out_;
  std::chrono::milliseconds timeout_;
};

class GlooTransport final : public Transport, public std::enable_shared_from_this<GlooTransport> {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store, std::string group)
      : rank_(gloo->getRank()),
        size_(gloo->getSize()),
        group_(std::move(group)),
        store_(std::move(store)),
        gloo_(std::move(gloo)) {}

  std::vector<runtime::ValueRef> start(Request request, Done done) override {
    gloo();  // throws where the group has failed
    auto job = std::make_shared<Job>();
    std::vector<runtime::ValueRef> values;
    for (const Collective& part : request.parts) {
      for (const Array& out : part.outputs) {
        if (out.host.defined()) continue;
        job->promised.emplace_back(hlo::Type{aten::dtype_of(out.dtype), out.sizes}, out.device);
        values.push_back(job->promised.back().value());
      }
    }
    if (values.empty() && request.device >= 0) {
      job->promised.emplace_back(hlo::Type{hlo::DType::U8, {0}}, request.device);
      values.push_back(job->promised.back().value());
    }
    job->request = std::move(request);
    job->done = std::move(done);
    lane_of(job->request.parts[0])->post([self = shared_from_this(), job] { self->run(*job); });
    return values;
  }

  bool drain(Clock::time_point until) override {
    std::vector<std::shared_ptr<Lane>> lanes;
    {
      std::lock_guard lock(mutex_);
      lanes.push_back(collectives_);
      for (auto& [key, lane] : messages_) lanes.push_back(lane);
    }
    bool all = true;
    for (auto& lane : lanes) all = lane->drain(until) && all;
    return finisher_->drain(until) && all;
  }

  void abort(const std::string& why) override {
    c10::intrusive_ptr<c10d::Backend> dropped;  // its end closes the connections: the other ranks fail at once
    std::lock_guard lock(mutex_);
    if (broken_.empty()) broken_ = why;
    dropped.swap(gloo_);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo() {
    std::lock_guard lock(mutex_);
    if (!gloo_) {
      throw c10::DistBackendError({"torch_tpu", "torch_tpu", 0},
                                  tpu::text("group '", group_, "' can't be used any more: ", broken_));
    }
    return gloo_;
  }

  std::shared_ptr<Lane> lane_of(const Collective& what) {
    std::lock_guard lock(mutex_);
    int peer = what.peer;
    switch (what.kind) {
      case Kind::Send: break;
      case Kind::Receive: peer = -1 - peer; break;
      case Kind::ReceiveAny: peer = -1 - size_; break;
      default: return collectives_;
    }
    auto& lane = messages_[{peer, what.tag}];
    if (!lane) lane = std::make_shared<Lane>();
    return lane;
  }

  // Runs in a lane's thread.
  void run(Job& job) {
    const auto begin = Clock::now();
    std::exception_ptr failure;
    size_t kept = 0;
    try {
      auto gloo = this->gloo();
      perform(*gloo, job);
      for (; kept < job.promised.size(); ++kept) job.promised[kept].keep();
    } catch (const Refused& error) {
      failure = failed(job, kept, told(job, error.what()));
    } catch (const c10::DistBackendError& error) {  // broken by another job
      failure = failed(job, kept, error.what_without_backtrace());
    } catch (const std::exception& error) {
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      const std::string gloo_says = text_of(error);
      abort(told(job, gloo_says));
      std::string text = told(job, tpu::text("failed after ", seconds, " s: ", missing_ranks(*store_, rank_, size_),
                                             ". Gloo says: ", gloo_says));
      {
        std::lock_guard lock(mutex_);
        broken_ = text;
      }
      failure = failed(job, kept, text);
    }
    if (failure) TPU_LOG(1, job.request.text(), " of group '", group_, "' failed");
    finisher_->post([done = std::move(job.done), failure, source = job.source] { done(failure, source); });
  }

  std::string told(const Job& job, std::string_view what) const {
    return tpu::text("rank ", rank_, " of group '", group_, "': ", job.request.text(), ": ", what);
  }

  static std::exception_ptr failed(Job& job, size_t kept, const std::string& text) {
    for (size_t i = kept; i < job.promised.size(); ++i) {
      try {
        job.promised[i].fail(text);
      } catch (const std::exception& error) {
        TPU_LOG(1, "a result could not be failed: ", error.what());
      }
    }
    return std::make_exception_ptr(c10::DistBackendError({"torch_tpu", "torch_tpu", 0}, text));
  }

  void perform(c10d::Backend& gloo, Job& job) {
    const Request& request = job.request;
    std::string lost;  // why an input of this rank has no value
    std::vector<Memories> ins(request.parts.size()), outs(request.parts.size());
    size_t next = 0;
    for (size_t p = 0; p < request.parts.size(); ++p) {
      for (const Array& in : request.parts[p].inputs) {
        const void* data = nullptr;
        try {
          data = in.host.defined() ? in.host.const_data_ptr()
                                   : host_memory(in.value, in.offset, job.staged.emplace_back());
        } catch (const std::exception& error) {
          lost = text_of(error);
        }
        ins[p].push_back({const_cast<void*>(data), in.numel(), in.dtype});
      }
      for (const Array& out : request.parts[p].outputs) {
        void* data = out.host.defined() ? out.host.mutable_data_ptr() : job.promised[next++].memory();
        outs[p].push_back({data, out.numel(), out.dtype});
      }
    }
    switch (request.parts[0].kind) {
      case Kind::Send: return send(gloo, job, ins[0][0], lost);
      case Kind::Receive:
      case Kind::ReceiveAny: return receive(gloo, job, outs[0][0]);
      default: break;
    }
    agree(gloo, job, lost);
    for (size_t p = 0; p < request.parts.size(); ++p)
      Part(gloo, request.parts[p], std::move(ins[p]), std::move(outs[p]), request.timeout).run();
  }

  // Only the lane of collectives comes here.
  void agree(c10d::Backend& gloo, const Job& job, const std::string& lost) {
    const uint64_t number = number_++;
    if (size_ == 1) {
      if (!lost.empty()) throw Refused("this rank can't take part: " + lost);
      return;
    }
    Tensor own = at::empty({Header::bytes(size_)}, at::TensorOptions(at::kByte));
    Tensor all = at::empty({size_ * Header::bytes(size_)}, at::TensorOptions(at::kByte));
    Header::write(job.request, number, size_, lost, own.mutable_data_ptr<uint8_t>());
    c10d::AllgatherOptions options;
    options.timeout = job.request.timeout;
    gloo._allgather_base(all, own, options)->wait();
    const std::string wrong = Header::compare(all.const_data_ptr<uint8_t>(), size_);
    if (!wrong.empty()) throw Refused(tpu::text("collective ", number, ": ", wrong));
  }

  static void finish(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout) {
    TORCH_CHECK(work->wait(timeout), "the message was given up");
  }

  void send(c10d::Backend& gloo, const Job& job, const Memory& in, const std::string& lost) {
    const Collective& what = job.request.parts[0];
    Tensors header{at::empty({Header::bytes(size_)}, at::TensorOptions(at::kByte))};
    Header::write(job.request, 0, size_, lost, header[0].mutable_data_ptr<uint8_t>());
    finish(gloo.send(header, what.peer, what.tag), job.request.timeout);
    if (!lost.empty()) throw Refused("this rank can't send: " + lost);
    if (in.size() == 0) return;
    Tensors data{in.bytes()};
    finish(gloo.send(data, what.peer, what.tag), job.request.timeout);
  }

  void receive(c10d::Backend& gloo, Job& job, const Memory& out) {
    const Collective& what = job.request.parts[0];
    Tensors header{at::empty({Header::bytes(size_)}, at::TensorOptions(at::kByte))};
    const bool any = what.kind == Kind::ReceiveAny;
    auto work = any ? gloo.recvAnysource(header, what.tag) : gloo.recv(header, what.peer, what.tag);
    finish(work, job.request.timeout);
    job.source = any ? work->sourceRank() : what.peer;
    int64_t bytes = 0;
    const std::string wrong = Header::compare_message(header[0].const_data_ptr<uint8_t>(), job.request, &bytes);
    if (!wrong.empty()) {
      // What was sent is taken from the connection, so that the next message is in its place.
      Tensors dropped{at::empty({bytes}, at::TensorOptions(at::kByte))};
      if (bytes > 0) finish(gloo.recv(dropped, job.source, what.tag), job.request.timeout);
      throw Refused(wrong);
    }
    if (out.size() == 0) return;
    Tensors data{out.bytes()};
    finish(gloo.recv(data, job.source, what.tag), job.request.timeout);
  }

  const int rank_, size_;
  const std::string group_;
  const c10::intrusive_ptr<c10d::Store> store_;
  uint64_t number_ = 0;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> gloo_;  // null once the group has failed
  std::string broken_;
  std::shared_ptr<Lane> collectives_ = std::make_shared<Lane>();
  // Telling the caller may run Python, or free its objects, and so wait for the GIL. Whoever holds that may be waiting
  // for a collective, so no lane that moves data may wait for it.
  std::shared_ptr<Lane> finisher_ = std::make_shared<Lane>();
  std::map<std::pair<int, int>, std::shared_ptr<Lane>> messages_;
};

}  // namespace

std::shared_ptr<Transport> gloo_transport(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store,
                                          std::string group) {
  return std::make_shared<GlooTransport>(std::move(gloo), std::move(store), std::move(group));
}

}  // namespace tpu::distributed
