// SPDX-License-Identifier: Apache-2.0
#include "aten/grouped.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/GroupedMMUtils.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include "aten/error.h"

namespace tpu::aten {
namespace {

using at::Tensor;

Tensor ragged(const char* name, const Tensor& a, const Tensor& b, const Tensor& sizes) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Tensor(const Tensor&, const Tensor&, const Tensor&)>()
      .call(a, b, sizes);
}

// Products group by group along the dimension that the offsets cut: by the ragged products of jagged.cc, so that the
// offsets stay on the device. PyTorch's own kernel reads them and multiplies each group by itself.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offsets,
                  const std::optional<Tensor>& bias, std::optional<at::ScalarType> dtype) {
  return guarded([&] {
    at::native::_grouped_mm_validate_inputs(a, b, offsets, bias, dtype);
    Tensor out = at::native::create_grouped_gemm_output_tensor(a, b, offsets,
                                                               at::native::_resolve_grouped_mm_out_dtype(a, b, dtype));
    if (!offsets) return out.copy_(at::bmm(a, b));
    const Tensor sizes = at::diff(*offsets, 1, 0, offsets->new_zeros({1}));
    if (a.dim() == 2 && b.dim() == 3) return out.copy_(ragged("tpu::ragged_dot", a, b, sizes));
    if (a.dim() == 2) return out.copy_(ragged("tpu::ragged_dot_weight_grad", a.t(), b, sizes));
    return out.copy_(ragged("tpu::ragged_dot", b.t(), a.transpose(1, 2), sizes).t());
  });
}

// For each place along a cut dimension of `length`, the group that it is in.
Tensor group_of(const Tensor& offsets, int64_t length) {
  return at::searchsorted(offsets, at::arange(length, offsets.options()), /*out_int32=*/false, /*right=*/true)
      .clamp(0, offsets.size(0) - 1);
}

// One operand in float32 with its scales, one for each row (`rows`) or column. Cut along the contracted dimension, each
// group has scales of its own, one group after the other.
Tensor scaled(const Tensor& x, const Tensor& scale, bool rows, const std::optional<Tensor>& contracted_by) {
  const Tensor wide = x.to(at::kFloat);
  if (!contracted_by) return wide * scale.unsqueeze(rows ? -1 : -2);
  const Tensor of_groups = scale.view({contracted_by->size(0), -1});
  const Tensor of_places = of_groups.index_select(0, group_of(*contracted_by, x.size(rows ? 1 : 0)));
  return wide * (rows ? of_places.t() : of_places);
}

// float8 operands with a float32 scale for each row of `a` and column of `b`. In float32, rounded once at the end.
Tensor scaled_grouped_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                         const std::optional<Tensor>& offsets, const std::optional<Tensor>& bias,
                         const std::optional<Tensor>& scale_result, std::optional<at::ScalarType> dtype, bool) {
  return guarded([&] {
    TORCH_CHECK(c10::isFloat8Type(a.scalar_type()) && c10::isFloat8Type(b.scalar_type()),
                "Expected float8 matrices for scaled grouped products, got ", a.scalar_type(), " and ",
                b.scalar_type());
    TORCH_CHECK(a.dim() == 2 || a.dim() == 3, "mat_a has to be 2 or 3d");
    TORCH_CHECK(b.dim() == 2 || b.dim() == 3, "mat_b has to be 2 or 3d");
    TORCH_CHECK(offsets.has_value() == (a.dim() == 2 || b.dim() == 2),
                "Have to provide offsets if there is a 2d matrix");
    TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match");
    TORCH_CHECK(scale_a.scalar_type() == at::kFloat && scale_b.scalar_type() == at::kFloat,
                "Both scale_a and scale_b must be float (fp32) tensors");
    TORCH_CHECK(!bias, "Bias not supported yet");
    TORCH_CHECK(!scale_result, "Scale result not supported yet");
    TORCH_CHECK(!dtype || *dtype == at::kBFloat16, "Only bf16 output is supported for scaled grouped products");
    const bool contracted = a.dim() == 2 && b.dim() == 2;
    const int64_t groups = contracted ? offsets->size(0) : 1;
    const auto fits = [&](const Tensor& scale, const Tensor& x, int64_t at) {
      return x.dim() == 3 ? scale.dim() == 2 && scale.size(0) == x.size(0) && scale.size(1) == x.size(at)
                          : scale.dim() == 1 && scale.size(0) == x.size(at) * groups;
    };
    TORCH_CHECK(fits(scale_a, a, -2), "scale_a must have a value for each row of mat_a, got ", scale_a.sizes());
    TORCH_CHECK(fits(scale_b, b, -1), "scale_b must have a value for each column of mat_b, got ", scale_b.sizes());
    const std::optional<Tensor> by = contracted ? offsets : std::nullopt;
    const Tensor x = scaled(a, scale_a, true, by), y = scaled(b, scale_b, false, by);
    return at::_grouped_mm(x, y, offsets, std::nullopt, at::kFloat).to(at::kBFloat16);
  });
}

}  // namespace

void register_grouped(torch::Library& aten) {
  aten.impl("_grouped_mm", TORCH_FN(grouped_mm));
  aten.impl("_scaled_grouped_mm", TORCH_FN(scaled_grouped_mm));
}

}  // namespace tpu::aten
