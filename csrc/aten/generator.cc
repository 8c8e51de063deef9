// SPDX-License-Identifier: Apache-2.0
#include "aten/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>

#include <array>
#include <cstring>
#include <mutex>

#include "aten/error.h"
#include "runtime/device.h"

namespace tpu::aten {
namespace {

constexpr int kMaxDevices = 128;  // c10::DeviceIndex is an int8_t
constexpr int64_t kStateBytes = 16;

// Leaked: Python wrappers of the generators outlive our statics at exit.
struct Defaults {
  std::mutex mutex;
  std::array<at::Generator, kMaxDevices> made;
  runtime::RandomState initial;  // of those not made yet
};
Defaults& defaults() {
  static auto* instance = new Defaults;
  return *instance;
}

}  // namespace

Generator::Generator(c10::DeviceIndex index, runtime::RandomState state)
    : GeneratorImpl(c10::Device(device_type(), index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(state) {}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return state_.seed;
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  at::TensorBase out = at::detail::empty_cpu({kStateBytes}, at::kByte);
  const uint64_t words[2] = {state_.seed, state_.offset};
  std::memcpy(out.mutable_data_ptr(), words, sizeof words);
  return out.getIntrusivePtr();
}

void Generator::set_state(const c10::TensorImpl& state) {
  const bool bytes = state.layout() == c10::kStrided && state.dtype() == caffe2::TypeMeta::Make<uint8_t>();
  TORCH_CHECK_TYPE(bytes && state.device().is_cpu(), "RNG state must be a torch.ByteTensor on the CPU, got ",
                   state.dtype(), " on ", state.device());
  TORCH_CHECK_TYPE(state.numel() == kStateBytes, "RNG state of a tpu generator must have ", kStateBytes,
                   " bytes (seed and offset), got ", state.numel());
  TORCH_CHECK_TYPE(state.is_contiguous(), "RNG state must be contiguous");
  uint64_t words[2];
  std::memcpy(words, state.data(), sizeof words);
  state_ = {words[0], words[1]};
}

void Generator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<Generator*>(state.get());
  TORCH_CHECK_TYPE(other, "expected a tpu generator, got one of ", state->device());
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> Generator::graphsafe_get_state() const {
  return c10::make_intrusive<Generator>(device_.index(), state_);
}

runtime::RandomState Generator::take(uint64_t count) {
  const runtime::RandomState before = state_;
  state_.offset += count;
  return before;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  const int device = index < 0 ? runtime::current_device() : index;
  runtime::check_device(device);
  Defaults& all = defaults();
  std::lock_guard lock(all.mutex);
  at::Generator& generator = all.made[static_cast<size_t>(device)];
  if (!generator.defined())
    generator = at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device), all.initial);
  return generator;
}

void seed_all(uint64_t seed) {
  Defaults& all = defaults();
  std::lock_guard lock(all.mutex);
  all.initial = {seed, 0};
  for (at::Generator& generator : all.made) {
    if (!generator.defined()) continue;
    std::lock_guard inner(generator.mutex());
    generator.set_current_seed(seed);
  }
}

PhiloxKey reserve(const std::optional<at::Generator>& generator, c10::Device device, uint64_t count) {
  const bool given = generator.has_value() && generator->defined();
  at::Generator chosen = given ? *generator : default_generator(device.index());
  if (chosen.device().type() != Generator::device_type())
    fail(ErrorKind::Runtime, "Expected a 'tpu' device type for generator but found '", chosen.device().type(), "'");
  std::lock_guard lock(chosen.mutex());
  return static_cast<Generator*>(chosen.unsafeGetGeneratorImpl())->take(count);
}

}  // namespace tpu::aten
