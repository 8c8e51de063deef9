# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's operator samples leave out of normalization."""

import copy

import conformance
import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_weight_norm_backward(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    v, dw = torch.randn(4, 6, 3, dtype=dtype), torch.randn(4, 6, 3, dtype=dtype)
    g = torch.randn([n if i == dim else 1 for i, n in enumerate(v.shape)], dtype=dtype)
    norms = torch.ops.aten._weight_norm_interface(v, g, dim)[1]
    arguments = dw, v, g, norms
    want = torch.ops.aten._weight_norm_interface_backward(*arguments, dim)
    got = torch.ops.aten._weight_norm_interface_backward(*conformance.on_tpu(arguments), dim)
    conformance.close(got, want)


def test_weight_norm_trains_on_the_device() -> None:
    torch.manual_seed(0)
    on_cpu = weight_norm(torch.nn.Conv1d(4, 6, 3), dim=0)
    x = torch.randn(2, 4, 9)
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    before = torch.tpu.fallback_stats()
    on_cpu(x).square().mean().backward()
    on_tpu(x.to("tpu")).square().mean().backward()
    assert torch.tpu.fallback_stats() == before
    for want, got in zip(on_cpu.parameters(), on_tpu.parameters(), strict=True):
        conformance.close(got.grad, want.grad)
