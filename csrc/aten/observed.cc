// SPDX-License-Identifier: Apache-2.0
#include "aten/observed.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/fake_quantize_per_channel_affine_cachemask.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <limits>

#include "aten/error.h"

namespace tpu::aten {
namespace {

using at::Tensor;

struct Parameters {
  Tensor scale, zero_point;
};

// Scale and zero point for values between `low` and `high`: the CPU's ChooseQuantizationParams
// (ATen/native/quantized/cpu/QuantUtils.h), for all rows at once. Rounded to float32 where the CPU rounds.
Parameters choose_parameters(const Tensor& low32, const Tensor& high32, int64_t qmin, int64_t qmax, bool symmetric) {
  constexpr double kSmallest = 6.1e-5f;
  const double steps = static_cast<double>(qmax - qmin);
  const auto rounded = [](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  Tensor low = low32.to(at::kDouble), high = high32.to(at::kDouble);
  const Tensor both_signs = (low < 0).logical_and(high > 0);
  if (symmetric) {
    const double below = -static_cast<double>((qmax - qmin) / 2 + 1), above = static_cast<double>((qmax - qmin) / 2);
    const Tensor widest = at::maximum(rounded(low / below).abs(), rounded(high / above).abs());
    low = at::where(both_signs, rounded(widest * below), low);
    high = at::where(both_signs, rounded(widest * above), high);
  }
  low = low.clamp_max(0), high = high.clamp_min(0);
  Tensor scale = rounded((high - low) / steps);
  const Tensor narrow = scale.to(at::kFloat);
  scale = at::where((narrow == 0).logical_or(narrow.reciprocal().isinf()), double{0.1f}, scale);
  const Tensor small = scale < kSmallest;
  const Tensor amplifier = rounded(kSmallest / scale);
  const double widest_range = kSmallest * steps;
  const Tensor from_zero = low == 0, to_zero = high == 0;
  const Tensor new_high = at::where(from_zero, widest_range, at::where(to_zero, high, high * amplifier));
  const Tensor new_low =
      at::where(from_zero, low, at::where(to_zero, Tensor(low.new_full({}, -widest_range)), low * amplifier));
  low = at::where(small, rounded(new_low), low), high = at::where(small, rounded(new_high), high);
  scale = at::where(small, kSmallest, scale);
  const double first = static_cast<double>(qmin), last = static_cast<double>(qmax);
  const Tensor closer_below = std::abs(first) - (low / scale).abs() < std::abs(last) - (high / scale).abs();
  Tensor zero = at::where(closer_below, first - low / scale, last - high / scale);
  if (symmetric) {
    zero = at::where((low < 0).logical_and(high > 0), Tensor(zero.new_full({}, (qmin + qmax) / 2.0)), zero);
  }
  return {scale, zero.round().clamp(first, last)};
}

std::tuple<Tensor, Tensor> observe_and_quantize(const Tensor& self, const Tensor& observer_on,
                                                const Tensor& fake_quant_on, Tensor& running_min, Tensor& running_max,
                                                Tensor& scale, Tensor& zero_point, double averaging, int64_t qmin,
                                                int64_t qmax, int64_t axis, bool per_row, bool symmetric) {
  return guarded([&]() -> std::tuple<Tensor, Tensor> {
    TORCH_CHECK(axis < self.dim(), "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()");
    TORCH_CHECK(!per_row || axis == 0,
                "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0");
    const Tensor observes = observer_on.ne(0), quantizes = fake_quant_on.ne(0);
    if (per_row && running_min.numel() == 0) {
      const int64_t rows = self.size(0);
      constexpr double kInf = std::numeric_limits<double>::infinity();
      running_min.resize_(rows).fill_(kInf);
      running_max.resize_(rows).fill_(-kInf);
      scale.resize_(rows);
      zero_point.resize_(rows);
    }
    const Tensor rows = per_row ? self.flatten(1) : self;
    const auto [low, high] = per_row ? at::aminmax(rows, 1) : at::aminmax(rows);
    const auto moved = [&](const Tensor& running, const Tensor& seen) {
      const Tensor next = at::where(running.isinf(), seen, running + averaging * (seen - running));
      return at::where(observes, next, running);
    };
    running_min.copy_(moved(running_min, low).view_as(running_min));
    running_max.copy_(moved(running_max, high).view_as(running_max));
    const Parameters p = choose_parameters(running_min, running_max, qmin, qmax, symmetric);
    scale.copy_(at::where(quantizes, p.scale.to(scale.scalar_type()).view_as(scale), scale));
    zero_point.copy_(at::where(quantizes, p.zero_point.to(zero_point.scalar_type()).view_as(zero_point), zero_point));
    if (!per_row) {
      return at::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(self, scale, zero_point, fake_quant_on, qmin,
                                                                           qmax);
    }
    const auto [out, mask] =
        at::fake_quantize_per_channel_affine_cachemask(self, scale, zero_point.to(at::kInt), 0, qmin, qmax);
    return {at::where(quantizes, out, self), at::where(quantizes, mask, true)};
  });
}

}  // namespace

void register_observed(torch::Library& aten) {
  aten.impl("_fused_moving_avg_obs_fq_helper", TORCH_FN(observe_and_quantize));
}

}  // namespace tpu::aten
