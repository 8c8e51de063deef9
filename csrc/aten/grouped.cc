// SPDX-License-Identifier: Apache-2.0
#include "aten/grouped.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/GroupedMMUtils.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/diff.h>
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

}  // namespace

void register_grouped(torch::Library& aten) { aten.impl("_grouped_mm", TORCH_FN(grouped_mm)); }

}  // namespace tpu::aten
