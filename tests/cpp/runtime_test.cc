// SPDX-License-Identifier: Apache-2.0
// Devices, streams, memory counts and forks in csrc/runtime, on the CPU plugin
// that argv[1] names.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "pjrt/options.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace tpu;
using namespace tpu::runtime;

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                                   \
    }                                                                               \
  } while (false)

namespace {

int failures = 0;

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& s, const std::string& part) { return s.find(part) != std::string::npos; }

// A program of some ten milliseconds: it is still running when its launch returns.
constexpr const char* kSlow = R"(module @slow {
  func.func public @main() -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %start = stablehlo.constant dense<0> : tensor<i32>
    %end = stablehlo.constant dense<40> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %x = stablehlo.constant dense<0.001> : tensor<256x256xf32>
    %r:2 = stablehlo.while(%i = %start, %a = %x) : tensor<i32>, tensor<256x256xf32>
      cond { %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %c : tensor<i1> }
      do { %n = stablehlo.add %i, %one : tensor<i32>
           %b = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0]
                : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
           %t = stablehlo.tanh %b : tensor<256x256xf32>
           stablehlo.return %n, %t : tensor<i32>, tensor<256x256xf32> }
    %s = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [0, 1]
         : (tensor<256x256xf32>, tensor<f32>) -> tensor<f32>
    return %s : tensor<f32>
  }
})";

struct Slow {
  // Leaked, as the runtime's programs are: an execution that ends while the process exits must not be the last to hold
  // one.
  pjrt::Executable& program =
      *new pjrt::Executable(Runtime::get().client().compile(kSlow, pjrt::serialize(pjrt::CompileOptions{})));
  std::vector<pjrt::Buffer> results;  // kept: freeing one would not wait either
  void launch(int device) {
    Runtime& runtime = Runtime::get();
    PJRT_Buffer* out = nullptr;
    pjrt::Event done;
    before_launch(device);
    program.execute(nullptr, 0, &out, runtime.device(device), nullptr, 0, &done);
    results.emplace_back(runtime.client().api(), out);
    after_launch(device, std::move(done));
  }
};

void test_devices() {
  CHECK(Runtime::available() && !Runtime::opened());
  CHECK(current_device() == 0 && device_count() == 2 && Runtime::opened());
  CHECK(Runtime::get().is_cpu() && Runtime::get().memory_limit() == 64 << 20);
  set_current_device(1);
  CHECK(current_device() == 1);
  CHECK(contains(error_of([] { set_current_device(2); }), "tpu:2 does not exist, there are 2 devices"));
  CHECK(contains(error_of([] { set_current_device(-1); }), "invalid device index -1"));
  CHECK(current_device() == 1);
  std::thread([] { CHECK(current_device() == 0); }).join();
  set_current_device(0);
}

void test_memory() {
  memory::add(1, 1000);
  memory::add(1, 500);
  memory::remove(1, 1000);
  memory::Stats stats = memory::stats(1);
  CHECK(stats.current == 500 && stats.peak == 1500 && stats.allocated == 1500 && stats.freed == 1000);
  CHECK(stats.count_current == 1 && stats.count_peak == 2);
  memory::reset_peak(1);
  memory::reset_accumulated(1);
  CHECK(memory::stats(1).peak == 500 && memory::stats(1).allocated == 0);
  memory::reserve(1, (64 << 20) - 500);
  CHECK(contains(error_of([] { memory::reserve(1, 64 << 20); }), "tried to allocate 64.00 MiB"));
  CHECK(!error_of([] { memory::reserve(1, INT64_MAX); }).empty());
  CHECK(memory::stats(1).out_of_memory == 2);
  memory::remove(1, 500);
}

void test_streams() {
  Slow slow;
  slow.launch(0);
  synchronize_device(0);  // warm
  CHECK(stream_idle(0, 0));

  // Idle, markers and their times.
  Marker start, end, unused;
  CHECK(unused.ready() && !unused.recorded());
  start.record(0, 0);
  CHECK(start.ready());
  slow.launch(0);
  CHECK(!stream_idle(0, 0));
  end.record(0, 0);
  CHECK(end.recorded() && !end.ready());
  CHECK(contains(error_of([&] { end.elapsed_since(start); }), "completed"));
  end.wait();
  CHECK(end.ready() && stream_idle(0, 0));
  const double once = end.elapsed_since(start);
  CHECK(once > 0.5);
  CHECK(contains(error_of([&] { end.elapsed_since(unused); }), "recorded"));

  // A stream that waits for another is not idle, and its next launch starts after the other's.
  const int64_t other = new_stream(0);
  CHECK(other != 0 && new_stream(0) != other);
  for (int i = 0; i < 3; ++i) slow.launch(0);
  end.record(0, 0);
  end.block(0, other);
  CHECK(!stream_idle(0, other));
  Marker after;
  after.record(0, other);  // nothing launched there: ready with what it waits for
  CHECK(!after.ready());
  set_current_stream(0, other);
  CHECK(current_stream(0) == other && current_stream(1) == 0);
  slow.launch(0);
  CHECK(end.ready());
  after.wait();  // follows `end` through a callback, so perhaps a moment later
  CHECK(after.ready());
  synchronize_stream(0, other);
  CHECK(stream_idle(0, other));
  set_current_stream(0, 0);
  CHECK(contains(error_of([] { set_current_stream(0, 99); }), "stream 99"));

  // Many launches unread: the list of them stays short.
  for (int i = 0; i < 300; ++i) slow.launch(i % 2);
  synchronize_device(0);
  synchronize_device(1);
  CHECK(stream_idle(0, 0) && stream_idle(1, 0));
  std::printf("slow program: %.1f ms\n", once);
}

void test_threads() {
  Slow slow;
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const int64_t stream = new_stream(0);
      set_current_stream(0, stream);
      for (int i = 0; i < 20; ++i) {
        {
          std::lock_guard lock(mutex);
          slow.launch(0);
        }
        Marker marker;
        marker.record(0, stream);
        marker.block(0, (stream + t) % 8);
        if (i % 5 == 0) synchronize_device(0);
      }
      synchronize_stream(0, stream);
    });
  for (auto& thread : threads) thread.join();
  synchronize_device(0);
}

void test_fork() {
  Slow slow;
  slow.launch(0);
  const pid_t pid = fork();
  if (pid == 0) {
    failures = 0;
    CHECK(in_forked_child() && !Runtime::available() && device_count() == 2);
    CHECK(contains(error_of([] { Runtime::get(); }), "Cannot re-initialize the tpu device in a forked subprocess"));
    synchronize_device(0);
    CHECK(stream_idle(0, 0));
    Marker marker;
    marker.record(0, 0);
    marker.wait();
    _exit(failures ? 1 : 0);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(!in_forked_child());
  synchronize_device(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: runtime_test plugin.so\n");
    return 2;
  }
  setenv("TPU_LIBRARY_PATH", "/nowhere/plugin.so", 1);
  const std::string error = error_of([] { Runtime::get(); });
  CHECK(contains(error, "TPU_LIBRARY_PATH: there is no file /nowhere/plugin.so"));
  setenv("TPU_LIBRARY_PATH", argv[1], 1);  // a later call tries again
  setenv("TORCH_TPU_VIRTUAL_DEVICES", "2", 1);
  setenv("TORCH_TPU_MEMORY_LIMIT_MB", "64", 1);
  test_devices();
  test_memory();
  test_streams();
  test_threads();
  test_fork();
  std::puts(failures ? "failed" : "ok");
  return failures ? 1 : 0;
}
