// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <optional>

#include "runtime/random_state.h"

namespace tpu::aten {

// A generator of the tpu device. Its state is two numbers on the host, so seeding and saving need
// no device. As in PyTorch, callers hold mutex_ around what is not a read.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index, runtime::RandomState state = {});
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override;  // a new one, from the system's entropy
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  uint64_t get_offset() const override { return state_.offset; }

  // 16 bytes: seed and offset, in the host's byte order. A wrong dtype or size throws TypeError.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // The state for an operator that consumes `count` counters; moves the offset on.
  runtime::RandomState take(uint64_t count);

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), state_); }
  runtime::RandomState state_;
};

// The device's own generator; -1 is the current device. Lives for the process. Throws
// tpu::Error when there is no such device.
const at::Generator& default_generator(c10::DeviceIndex index);

// Seeds every device's generator, also those not made yet: opens no device.
void seed_all(uint64_t seed);

// What a random operator passes to its program: the generator's state before it, moved on by
// `count` under its lock. Throws tpu::Error for a generator of another device type.
using PhiloxKey = runtime::RandomState;
PhiloxKey reserve(const std::optional<at::Generator>& generator, c10::Device device, uint64_t count);

}  // namespace tpu::aten
