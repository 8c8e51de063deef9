# SPDX-License-Identifier: Apache-2.0
"""vmap, forward mode, gradients of gradients and gradcheck on tpu: samples of PyTorch's entries, judged by the CPU.
TORCH_TPU_TEST_GRID=1 takes all entries."""

from collections.abc import Callable
from typing import Any

import conformance
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

ENTRIES = """
    mul exp tanh sum prod var cumsum max.reduction_with_dim logsumexp softmax matmul bmm addmm linalg.inv
    linalg.cholesky linalg.qr linalg.svd nn.functional.linear nn.functional.conv2d nn.functional.layer_norm
    nn.functional.batch_norm nn.functional.gelu nn.functional.max_pool2d nn.functional.embedding
    nn.functional.cross_entropy index_select gather scatter index_put where sort cat flip fft.fft
    nn.functional.interpolate.bilinear nn.functional.scaled_dot_product_attention einsum
""".split()
OPS = [op for op in op_db if torch.float64 in op.supported_dtypes("cpu") and op.supports_autograd]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120, method="thread")]

Function = Callable[..., tuple[torch.Tensor, ...]]


def of_sample(op: Any, s: Any) -> tuple[Function, list[torch.Tensor]]:
    """The entry as a function of the sample's differentiable tensors, and those."""
    inputs = [t for t in conformance.parts(s) if t.requires_grad]

    def f(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        at = dict(zip(map(id, inputs), values, strict=True))
        x, args, kwargs = conformance.tree(lambda t: at.get(id(t), t), (s.input, tuple(s.args), s.kwargs))
        out = s.output_process_fn_grad(op(x, *args, **kwargs))
        return tuple(t for t in conformance.tensors(out) if t.is_floating_point() or t.is_complex())

    return f, [t.detach() for t in inputs]


def total(f: Function) -> Callable[..., torch.Tensor]:
    return lambda *x: sum(t.abs().square().sum() for t in f(*x))


def vmap(f: Function, x: list[torch.Tensor]) -> Any:
    return torch.func.vmap(f)(*(torch.stack([t, t]) for t in x))


def vmap_of_grad(f: Function, x: list[torch.Tensor]) -> Any:
    grad = torch.func.grad(total(f), argnums=tuple(range(len(x))))
    return torch.func.vmap(grad)(*(torch.stack([t, t]) for t in x))


def forward_mode(f: Function, x: list[torch.Tensor]) -> Any:
    return torch.func.jvp(f, tuple(x), tuple(t.cos() for t in x))


def double_backward(f: Function, x: list[torch.Tensor]) -> Any:
    x = [t.clone().requires_grad_() for t in x]
    first = torch.autograd.grad(total(f)(*x), x, create_graph=True)
    return torch.autograd.grad(sum((g * t.detach().cos()).sum() for g, t in zip(first, x, strict=True)), x)


def gradcheck(f: Function, x: list[torch.Tensor]) -> bool:
    x = [t.clone().requires_grad_() for t in x]
    return sum(t.numel() for t in x) > 40 or torch.autograd.gradcheck(f, x)


@pytest.mark.parametrize("transform", [vmap, vmap_of_grad, forward_mode, double_backward, gradcheck])
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            op,
            id=conformance.full_name(op),
            marks=[
                pytest.mark.xdist_group(op.name),
                *([] if conformance.full_name(op) in ENTRIES else [pytest.mark.grid]),
            ],
        )
        for op in OPS
    ],
)
def test_transform(op: Any, transform: Callable[[Function, list[torch.Tensor]], Any]) -> None:
    s, m = list(conformance.samples(op, torch.float64, 3, grad=True))[-1]
    if conformance.is_random(op, s) or op.name in conformance.UNINITIALIZED:
        pytest.skip("values are drawn")
    try:
        want = transform(*of_sample(op, s))
    except Exception as error:
        pytest.skip(f"nor does the CPU: {type(error).__name__}")
    got = transform(*of_sample(op, m))
    if got is not True:
        conformance.close(got, want, rtol=1e-7, atol=1e-7)
