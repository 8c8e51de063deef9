// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "pjrt/event.h"

namespace tpu::runtime {

// Streams order launches. PJRT has no streams: programs are ordered by the values they pass on, so
// a stream here is the list of launches not yet finished plus the events that its next launch must
// wait for. Stream 0 of each device is the default stream. All functions are thread-safe; ids are
// per device and valid for the process.

// The calling thread's current stream of `device`; starts at 0.
int64_t current_stream(int device);
void set_current_stream(int device, int64_t id);
int64_t new_stream(int device);

// Called by the executor around a launch: waits for events the stream must wait for; hands over
// the launch's completion.
void before_launch(int device);
void after_launch(int device, pjrt::Event done);

bool stream_idle(int device, int64_t id);
void synchronize_stream(int device, int64_t id);  // blocks; throws what a launch failed with
void synchronize_device(int device);

// A marker in a stream: ready once everything launched on it before has finished.
class Marker {
 public:
  // Marks the current tail of a stream; a second call moves the marker.
  void record(int device, int64_t stream);
  bool recorded() const;
  bool ready() const;
  void wait() const;  // blocks the calling thread
  // Later launches on the stream start only after the marker is ready.
  void block(int device, int64_t stream) const;
  // Milliseconds from `start` being ready to this one being ready; both must be ready and recorded.
  double elapsed_since(const Marker& start) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tpu::runtime
