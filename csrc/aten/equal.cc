// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace tpu::aten {
namespace {

// torch.equal: compared on the device, one bit read.
bool equal(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(), "Cannot compare two tensors on different devices. Got: ", a.device(), " and ",
              b.device());
  if (a.sizes() != b.sizes()) return false;
  return a.numel() == 0 || a.eq(b).all().item().toBool();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("equal", TORCH_FN(equal)); }

}  // namespace tpu::aten
