// SPDX-License-Identifier: Apache-2.0
// The contract of csrc/pjrt, on the CPU plugin that argv[1] names. With "speed" after it, prints
// what the calls cost instead.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "pjrt/client.h"
#include "pjrt/promise.h"
#include "pjrt/signature.h"
#include "pjrt/topology.h"

using namespace tpu;
using namespace tpu::pjrt;

namespace {

int failures = 0;

#define CHECK(...)                                                                   \
  do {                                                                               \
    if (!(__VA_ARGS__)) {                                                            \
      ++failures;                                                                    \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
    }                                                                                \
  } while (false)

// The error `f` throws, or an Internal one that says it threw none.
template <class F>
Error error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorKind::Internal, "no error");
}

bool mentions(const Error& e, const char* part) { return std::strstr(e.what(), part) != nullptr; }

constexpr const char* kAdd = R"(module {
  func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = stablehlo.add %a, %b : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
})";

constexpr const char* kAddInPlace = R"(module {
  func.func @main(%a: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<8x8xf32>)
      -> tensor<8x8xf32> {
    %0 = stablehlo.add %a, %b : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
})";

constexpr const char* kAllReduce = R"(module attributes {mhlo.num_replicas = 4 : i32} {
  func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = "stablehlo.all_reduce"(%a) ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}
       : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
})";

const int64_t kDims[] = {8, 8};
using Values = std::vector<float>;

Buffer upload(Client& client, const Device& device, float value) {
  Values v(64, value);
  return client.from_host(v.data(), PJRT_Buffer_Type_F32, kDims, 2, device);
}

Values download(const Buffer& b) {
  Values v(64);
  b.to_host(v.data(), v.size() * sizeof(float)).await();
  return v;
}

Buffer run(Client& client, const Executable& program, const Buffer& a, const Buffer& b, const Device& device,
           std::vector<int64_t> keep = {}) {
  PJRT_Buffer* in[] = {a.handle(), b.handle()};
  PJRT_Buffer* out = nullptr;
  Event done;
  program.execute(in, 2, &out, device, keep.data(), keep.size(), &done);
  Buffer result(client.api(), out);
  done.await();
  return result;
}

void test_env() {
  auto with = [](const char* name, const char* value, auto f) {
    setenv(name, value, 1);
    Error e = error_of(f);
    unsetenv(name);
    return e;
  };
  CHECK(env::get_int("TORCH_TPU_CACHE_SIZE_MB") == 2048);
  CHECK(env::get_string("TORCH_TPU_CPU_FALLBACK") == "warn");
  Error e = with("TORCH_TPU_DEBUG", "abc", [] { env::get_int("TORCH_TPU_DEBUG"); });
  CHECK(e.kind() == ErrorKind::Value && mentions(e, "TORCH_TPU_DEBUG") && mentions(e, "\"abc\"") &&
        mentions(e, "from 0 to 4"));
  e = with("TORCH_TPU_DEBUG", "5", [] { env::get_int("TORCH_TPU_DEBUG"); });
  CHECK(e.kind() == ErrorKind::Value);
  e = with("TORCH_TPU_CACHE", "maybe", [] { env::get_bool("TORCH_TPU_CACHE"); });
  CHECK(e.kind() == ErrorKind::Value);
  e = with("TORCH_TPU_CPU_FALLBACK", "w", [] { env::get_string("TORCH_TPU_CPU_FALLBACK"); });
  CHECK(e.kind() == ErrorKind::Value && mentions(e, "warn|allow|error"));
  CHECK(env::table().size() == std::size(env::kSwitches));
  TPU_LOG(5, "never shown");
}

void test_signature() {
  const std::string text =
      "module @f {\n  func.func public @main(%arg0: tensor<2xcomplex<f32>> {tf.aliasing_output = 0 : i32}, %arg1: "
      "tensor<i32>) -> (tensor<2xcomplex<f32>>, tensor<i32>) {\n    %0 = tensor<f32>\n  }\n}\n";
  const std::string mark = "mhlo.sharding = \"{replicated}\"";
  CHECK(marked_for("cpu", text) == text);
  const std::string marked = marked_for("tpu", text);
  CHECK(marked == "module @f {\n  func.func public @main(%arg0: tensor<2xcomplex<f32>> {" + mark +
                      ", tf.aliasing_output = 0 : i32}, %arg1: tensor<i32> {" + mark +
                      "}) -> (tensor<2xcomplex<f32>> {" + mark + "}, tensor<i32> {" + mark +
                      "}) {\n    %0 = tensor<f32>\n  }\n}\n");
  CHECK(marked_for("tpu", marked) == marked);
  CHECK(marked_for("tpu", "@main(%a: tensor<2xf32>) -> tensor<2xf32> {\n}") ==
        "@main(%a: tensor<2xf32> {" + mark + "}) -> (tensor<2xf32> {" + mark + "}) {\n}");
}

void test_plugin_errors() {
  Error e = error_of([] { Plugin::load("/nonexistent/plugin.so"); });
  CHECK(e.kind() == ErrorKind::Runtime && mentions(e, "/nonexistent/plugin.so: no such file"));
  char name[] = "/tmp/pjrt_test_XXXXXX";
  int file = mkstemp(name);
  CHECK(file >= 0 && ::write(file, "text", 4) == 4);
  close(file);
  e = error_of([&] { Plugin::load(name); });
  CHECK(e.kind() == ErrorKind::Runtime && mentions(e, "cannot be loaded") && mentions(e, name));
  unlink(name);
  e = error_of([] { Plugin::load("/usr/lib/x86_64-linux-gnu/libm.so.6"); });
  CHECK(e.kind() == ErrorKind::Runtime);  // no GetPjrtApi, or no such file elsewhere
}

void test_run(Client& client, const Executable& add) {
  CHECK(add.num_outputs() == 1);
  for (const Device& device : client.devices()) {
    Buffer a = upload(client, device, 1), b = upload(client, device, 2);
    CHECK(download(run(client, add, a, b, device)) == Values(64, 3));
    CHECK(!a.deleted());
  }
  ArrayType out = add.outputs().at(0);
  CHECK(out.type == PJRT_Buffer_Type_F32 && out.dims == std::vector<int64_t>({8, 8}));
}

void test_donation(Client& client, const std::string& options) {
  Executable add = client.compile(kAddInPlace, options);
  const Device& device = client.devices().back();
  Buffer a = upload(client, device, 1), b = upload(client, device, 2);
  uintptr_t before = a.address();

  Buffer kept = run(client, add, a, b, device, {0});
  CHECK(!a.deleted() && download(a) == Values(64, 1) && download(kept) == Values(64, 3));
  CHECK(kept.address() != before);

  Buffer moved = run(client, add, a, b, device);
  CHECK(a.deleted() && download(moved) == Values(64, 3));
  CHECK(moved.address() == before);
  CHECK(error_of([&] { download(a); }).kind() == ErrorKind::Runtime);
  Values v(64);
  CHECK(error_of([&] { a.read(v.data(), 256); }).kind() == ErrorKind::Runtime);
  CHECK(error_of([&] { run(client, add, a, b, device); }).kind() == ErrorKind::Runtime);
  // The same buffer donated and read.
  Error e = error_of([&] { run(client, add, b, b, device); });
  CHECK(e.kind() == ErrorKind::Runtime);
}

void test_element_types(Client& client) {
  struct {
    PJRT_Buffer_Type type;
    size_t size;
  } types[] = {{PJRT_Buffer_Type_PRED, 1}, {PJRT_Buffer_Type_S8, 1},      {PJRT_Buffer_Type_S64, 8},
               {PJRT_Buffer_Type_F16, 2},  {PJRT_Buffer_Type_BF16, 2},    {PJRT_Buffer_Type_F32, 4},
               {PJRT_Buffer_Type_F64, 8},  {PJRT_Buffer_Type_C64, 8},     {PJRT_Buffer_Type_C128, 16},
               {PJRT_Buffer_Type_U64, 8},  {PJRT_Buffer_Type_F8E4M3FN, 1}};
  const std::vector<int64_t> shapes[] = {{}, {0}, {3, 0, 2}, {5}, {2, 3, 4}};
  const Device& device = client.devices()[0];
  for (auto [type, size] : types)
    for (const auto& dims : shapes) {
      size_t count = 1;
      for (int64_t d : dims) count *= static_cast<size_t>(d);
      std::vector<unsigned char> data(count * size), back(count * size, 9);
      for (size_t i = 0; i < data.size(); ++i) data[i] = i % 2;
      for (auto use : {Client::HostUse::DuringCall, Client::HostUse::UntilDone}) {
        Event done;
        Buffer b = client.from_host(data.data(), type, dims.data(), dims.size(), device, use, &done);
        done.await();
        CHECK(b.type() == type && b.dims() == dims && b.bytes() == count * size);
        b.to_host(back.data(), back.size()).await();
        CHECK(back == data);
        std::fill(back.begin(), back.end(), 9);
        b.read(back.data(), back.size());
        CHECK(back == data);
      }
    }
}

void test_errors(Client& client, const Executable& add, const std::string& options) {
  const Device& device = client.devices()[0];
  for (const char* text : {"", "not mlir", "module {", "module { func.func @main( }",
                           "module { func.func @main() -> tensor<2xf32> { return } }"})
    CHECK(error_of([&] { client.compile(text, options); }).kind() == ErrorKind::Runtime);
  CHECK(error_of([&] { client.deserialize("rubbish", options); }).kind() == ErrorKind::Runtime);

  Buffer a = upload(client, device, 1);
  float small[4];
  CHECK(error_of([&] { a.to_host(small, sizeof small).await(); }).kind() == ErrorKind::Runtime);

  PJRT_Buffer* in[] = {a.handle(), a.handle(), a.handle()};
  PJRT_Buffer* out = nullptr;
  for (size_t count : {0, 1, 3})
    CHECK(error_of([&] { add.execute(in, count, &out, device, nullptr, 0, nullptr); }).kind() == ErrorKind::Runtime);

  Executable huge = client.compile(R"(module {
    func.func @main(%a: tensor<f32>) -> tensor<2748779069440xf32> {
      %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<2748779069440xf32>
      return %0 : tensor<2748779069440xf32>
    }})",
                                   options);
  float one = 1;
  Buffer scalar = client.from_host(&one, PJRT_Buffer_Type_F32, nullptr, 0, device);
  in[0] = scalar.handle();
  Error e = error_of([&] {
    Event done;
    huge.execute(in, 1, &out, device, nullptr, 0, &done);
    Buffer result(client.api(), out);
    done.await();
    result.ready().await();
  });
  CHECK(e.kind() == ErrorKind::OutOfMemory);
}

void test_serialize(Client& client, const Executable& add, const std::string& options) {
  std::string bytes = add.serialize();
  Executable again = client.deserialize(bytes, options);
  CHECK(again.num_outputs() == 1);
  for (const Device& device : client.devices()) {
    Buffer a = upload(client, device, 1), b = upload(client, device, 2);
    CHECK(download(run(client, again, a, b, device)) == Values(64, 3));
  }
  Executable in_place = client.deserialize(client.compile(kAddInPlace, options).serialize(), options);
  const Device& device = client.devices()[0];
  Buffer a = upload(client, device, 1), b = upload(client, device, 2);
  CHECK(download(run(client, in_place, a, b, device)) == Values(64, 3) && a.deleted());
}

void test_analysis(const Executable& add) {
  MemoryStats memory = add.memory();
  CHECK(memory.arguments == 512 && memory.outputs == 256);
  Error e = error_of([&] { CHECK(add.cost_analysis()["flops"] == 64); });
  CHECK(e.kind() == ErrorKind::NotImplemented || mentions(e, "no error"));  // CPU plugins lack it
  CHECK(!add.optimized_program().empty());
}

void test_devices(Client& client) {
  const auto& devices = client.devices();
  CHECK(devices.size() == 4 && !devices[0].kind.empty());
  Buffer a = upload(client, devices[0], 7);
  CHECK(download(a.copy_to(devices[2])) == Values(64, 7));

  CompileOptions options;
  options.num_replicas = 4;
  options.portable = false;
  options.device_assignment = {0, 1, 2, 3};
  for (const Device& d : devices) options.device_assignment[static_cast<size_t>(d.ordinal)] = d.id;
  Executable sum = client.compile(kAllReduce, serialize(options));
  Buffer in[4], out[4];
  PJRT_Buffer* raw_in[4];
  PJRT_Buffer* raw_out[4] = {};
  PJRT_Buffer* const* ins[4];
  PJRT_Buffer** outs[4];
  for (size_t d = 0; d < 4; ++d) {
    in[d] = upload(client, devices[d], static_cast<float>(d));
    raw_in[d] = in[d].handle();
    ins[d] = &raw_in[d];
    outs[d] = &raw_out[d];
  }
  Event done[4];
  sum.execute_all(ins, 4, 1, outs, nullptr, 0, done);
  for (size_t d = 0; d < 4; ++d) {
    done[d].await();
    CHECK(download(Buffer(client.api(), raw_out[d])) == Values(64, 6));
  }
}

void test_events(Client& client, const Executable& add) {
  const Device& device = client.devices()[0];
  Buffer a = upload(client, device, 1);
  PJRT_Buffer* in[] = {a.handle(), a.handle()};
  PJRT_Buffer* out = nullptr;
  Event done;
  add.execute(in, 2, &out, device, nullptr, 0, &done);
  Buffer result(client.api(), out);
  std::atomic<int> called{0};
  done.on_ready([&](const std::string* error) { called = error ? -1 : 1; });
  done = Event();  // the callback comes all the same
  while (!called) std::this_thread::yield();
  CHECK(called == 1);
  Event ready = result.ready();
  ready.await();
  CHECK(ready.ready() && Event().ready());
}

// A buffer that is filled later: launches on it wait, whether it is kept, written in place, failed or given up.
void test_promises(Client& client, const Executable& add) {
  const Device& device = client.devices()[1];
  const Buffer one = upload(client, device, 1);
  const Values twos(64, 2);
  enum { Copied, Written, Failed, GivenUp };
  for (int how : {Copied, Written, Failed, GivenUp}) {
    auto promise = std::make_unique<Promise>(client, PJRT_Buffer_Type_F32, kDims, 2, device);
    const Buffer later = promise->buffer();
    CHECK(!later.ready().ready());
    PJRT_Buffer* in[] = {later.handle(), one.handle()};
    PJRT_Buffer* out = nullptr;
    add.execute(in, 2, &out, device, nullptr, 0, nullptr);
    const Buffer sum(client.api(), out);
    CHECK(!sum.ready().ready());
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (how == Copied) promise->keep(twos.data(), 256);
      if (how == Written) {
        std::memcpy(reinterpret_cast<void*>(later.address()), twos.data(), 256);
        promise->keep(nullptr, 0);
      }
      if (how == Failed) promise->fail("the cat has eaten it");
      promise.reset();
    });
    if (how == Copied || how == Written) {
      CHECK(download(sum) == Values(64, 3));
    } else {
      const Error e = error_of([&] { download(sum); });
      CHECK(mentions(e, how == Failed ? "the cat has eaten it" : "given up"));
    }
    other.join();
  }
}

void leave_running(Client& client, const std::string& options) {
  static Executable product = client.compile(R"(module {
    func.func @main(%a: tensor<1500x1500xf32>) -> tensor<1500x1500xf32> {
      %0 = stablehlo.dot %a, %a
           : (tensor<1500x1500xf32>, tensor<1500x1500xf32>) -> tensor<1500x1500xf32>
      return %0 : tensor<1500x1500xf32>
    }})",
                                             options);
  const int64_t dims[] = {1500, 1500};
  Values v(1500 * 1500, 1);
  static Buffer last = client.from_host(v.data(), PJRT_Buffer_Type_F32, dims, 2, client.devices()[0]);
  for (int i = 0; i < 4; ++i) {
    PJRT_Buffer* in[] = {last.handle()};
    PJRT_Buffer* out = nullptr;
    product.execute(in, 1, &out, client.devices()[0], nullptr, 0, nullptr);
    last = Buffer(client.api(), out);
  }
}

template <class F>
void measure(const char* what, F f) {
  using Clock = std::chrono::steady_clock;
  constexpr int kCalls = 2000, kRounds = 15;
  double times[kRounds];
  for (double& t : times) {
    auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    t = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls;
  }
  std::sort(times, times + kRounds);
  std::printf("%8.0f ns (least %.0f)  %s\n", times[kRounds / 2], times[0], what);
}

void speed(Client& client, const std::string& options) {
  const Device& device = client.devices()[0];
  Executable add = client.compile(kAdd, options), in_place = client.compile(kAddInPlace, options);
  Buffer a = upload(client, device, 1), b = upload(client, device, 2);
  const int64_t first = 0;
  auto launch = [&](const Executable& program, bool keep, Event* done) {
    PJRT_Buffer* in[] = {a.handle(), b.handle()};
    PJRT_Buffer* out = nullptr;
    program.execute(in, 2, &out, device, &first, keep ? 1 : 0, done);
    return Buffer(client.api(), out);
  };
  measure("launch, no event", [&] { launch(add, false, nullptr); });
  measure("launch, event", [&] {
    Event e;
    launch(add, false, &e);
  });
  measure("launch, event, await", [&] {
    Event e;
    launch(add, false, &e);
    e.await();
  });
  measure("launch, ready event of the output", [&] { launch(add, false, nullptr).ready().await(); });
  measure("launch, input kept", [&] { launch(in_place, true, nullptr); });
  measure("launch, input donated", [&] { a = launch(in_place, false, nullptr); });
  measure("launch, input donated, event", [&] {
    Event e;
    a = launch(in_place, false, &e);
  });
  measure("launch chained, no event", [&] { a = launch(add, false, nullptr); });
  a.ready().await();
  int64_t scalar = 3;
  measure("from_host, 8 bytes", [&] { client.from_host(&scalar, PJRT_Buffer_Type_S64, nullptr, 0, device); });
  Buffer s = client.from_host(&scalar, PJRT_Buffer_Type_S64, nullptr, 0, device);
  measure("to_host, 8 bytes, await", [&] { s.to_host(&scalar, sizeof scalar).await(); });
  measure("read, 8 bytes", [&] { s.read(&scalar, sizeof scalar); });
  measure("Buffer::ready", [&] { a.ready(); });
  Event e = a.ready();
  measure("Event::ready", [&] { e.ready(); });
  measure("Event::await, ready", [&] { e.await(); });
  measure("Buffer::deleted", [&] { a.deleted(); });
  measure("Buffer::bytes", [&] { a.bytes(); });
  measure("Buffer::address", [&] { a.address(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: pjrt_test PLUGIN [speed]\n"), 2;
  try {
    Plugin& plugin = Plugin::load(argv[1]);
    CHECK(&plugin == &Plugin::load(argv[1]));
    std::printf("API %d.%d\n", plugin.api_major(), plugin.api_minor());
    auto client = Client::create(plugin, {{"cpu_device_count", int64_t{4}}});
    std::string options = serialize(CompileOptions{});
    if (argc > 2) return speed(*client, options), 0;
    CHECK(client->platform_name() == "cpu" && !client->platform_version().empty());
    {
      Executable add = client->compile(kAdd, options);
      test_env();
      test_signature();
      test_plugin_errors();
      test_run(*client, add);
      test_donation(*client, options);
      test_element_types(*client);
      test_serialize(*client, add, options);
      test_analysis(add);
      test_events(*client, add);
      test_devices(*client);
      test_promises(*client, add);
      test_errors(*client, add, options);
    }
    // Left to the end of the process, with launches under way and owners never destroyed.
    leave_running(*client.release(), options);
    std::printf("%s\n", failures ? "FAILED" : "ok");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "uncaught: %s\n", e.what());
    return 1;
  }
  return failures != 0;
}
