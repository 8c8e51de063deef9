// SPDX-License-Identifier: Apache-2.0
#include "aten/profiler.h"

#define USE_KINETO
#define FMT_HEADER_ONLY
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/fuse.h"
#include "runtime/profile.h"

namespace tpu::aten {
namespace {

namespace profile = runtime::profile;
using libkineto::ActivityType;
using profile::Span;

ActivityType type_of(Span::Kind kind) {
  return kind == Span::Kind::Program ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY;
}

// One profile: PyTorch starts it, stops it and then reads it.
class Session : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}

  void start() override {
    profile::begin();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    runtime::fuse::flush_all();
    spans_ = profile::end();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override { process(logger, {}, INT64_MIN, INT64_MAX); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t from,
                    int64_t to) override {
    process(logger, linked, from, to);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return {}; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { profile::push_correlation(id); }
  void popCorrelationId() override { profile::pop_correlation(); }

 private:
  void process(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked, int64_t from,
               int64_t to) {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(from, to, "tpu");
    buffer_->gpuOpCount = static_cast<int>(spans_.size());
    std::set<std::pair<int, int64_t>> places;
    for (const Span& s : spans_) {
      if (!wanted_.contains(type_of(s.kind)) || s.end < from || s.start > to) continue;
      places.emplace(s.device, s.stream);
      buffer_->emplace_activity(buffer_->span, type_of(s.kind), s.name);
      libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
      activity.startTime = s.start;
      activity.endTime = s.end;
      activity.device = s.device;
      activity.resource = activity.threadId = static_cast<int32_t>(s.stream);
      activity.id = static_cast<int32_t>(s.correlation);
      if (s.correlation != 0) {
        activity.flow.id = static_cast<uint32_t>(s.correlation);
        activity.flow.type = libkineto::kLinkAsyncCpuGpu;
        activity.flow.start = 0;
        if (linked) activity.linked = linked(static_cast<int32_t>(s.correlation));
      }
      activity.addMetadata("stream", s.stream);
      activity.addMetadata("queued_ns", s.start - s.queued);
      if (!s.line.empty()) activity.addMetadataQuoted("line", s.line);
      if (s.kind != Span::Kind::Program) activity.addMetadata("bytes", s.bytes);
      activity.log(logger);
    }
    for (const auto& [device, stream] : places) {
      const std::string name = "tpu:" + std::to_string(device);
      logger.handleDeviceInfo({device, device, name, name}, from);
      logger.handleResourceInfo({stream, stream, device, "stream " + std::to_string(stream)}, from);
    }
  }

  std::set<ActivityType> wanted_;
  std::vector<Span> spans_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    if (!wanted.contains(ActivityType::CONCURRENT_KERNEL) && !wanted.contains(ActivityType::GPU_MEMCPY)) return nullptr;
    return std::make_unique<Session>(wanted);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_{"tpu"};
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
};

}  // namespace

void register_profiler() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
}

}  // namespace tpu::aten
