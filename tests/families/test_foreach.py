# SPDX-License-Identifier: Apache-2.0
"""List operators: one launch, the numbers of the single operator, mixed lists."""

import pytest
import torch

import torch_tpu  # noqa: F401

SHAPES = [(3,), (), (2, 4), (0, 2)]


def lists(device, n=1, dtype=torch.float32, positive=False):
    g = torch.Generator().manual_seed(0)
    out = []
    for _ in range(n):
        ts = [torch.randn(s, generator=g) for s in SHAPES]
        ts = [t.abs() + 0.5 if positive else t for t in ts]
        out.append([t.to(dtype).to(device) for t in ts])
    return out


CALLS = {
    "add list": lambda a, b, c: torch._foreach_add(a, b, alpha=2),
    "add list one": lambda a, b, c: torch._foreach_add(a, b),
    "add scalar": lambda a, b, c: torch._foreach_add(a, 1.5),
    "add scalars": lambda a, b, c: torch._foreach_add(a, [1, 2.5, 3, 4]),
    "add tensor": lambda a, b, c: torch._foreach_add(a, torch.tensor(2.0), alpha=3),
    "sub list": lambda a, b, c: torch._foreach_sub(a, b, alpha=0.5),
    "mul": lambda a, b, c: torch._foreach_mul(a, b),
    "mul tensor": lambda a, b, c: torch._foreach_mul(a, torch.tensor(2.0)),
    "div": lambda a, b, c: torch._foreach_div(a, 3),
    "maximum": lambda a, b, c: torch._foreach_maximum(a, 0.25),
    "clamp_max": lambda a, b, c: torch._foreach_clamp_max(a, b),
    "pow": lambda a, b, c: torch._foreach_pow(c, 1.5),
    "pow scalar base": lambda a, b, c: torch._foreach_pow(2.0, a),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.5),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [1.0, 2.0, 3.0, 4.0]),
    "addcdiv tensor": lambda a, b, c: torch._foreach_addcdiv(a, b, c, torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.3),
    "lerp list": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "lerp scalars": lambda a, b, c: torch._foreach_lerp(a, b, [0.1, 0.2, 0.7, 0.9]),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(c),
    "sign": lambda a, b, c: torch._foreach_sign(a),
    "norm": lambda a, b, c: torch._foreach_norm(a),
    "norm 1": lambda a, b, c: torch._foreach_norm(a, 1),
    "norm inf": lambda a, b, c: torch._foreach_norm(a[:3], float("inf")),
    "norm dtype": lambda a, b, c: torch._foreach_norm(a, 2, dtype=torch.float64),
    "max": lambda a, b, c: torch._foreach_max(a[:3]),
    "clone": lambda a, b, c: torch._foreach_clone(a),
}
IN_PLACE = {
    "add_": lambda a, b, c: torch._foreach_add_(a, b, alpha=2),
    "mul_": lambda a, b, c: torch._foreach_mul_(a, 0.5),
    "addcmul_": lambda a, b, c: torch._foreach_addcmul_(a, b, c, value=-0.5),
    "lerp_": lambda a, b, c: torch._foreach_lerp_(a, b, 0.9),
    "zero_": lambda a, b, c: torch._foreach_zero_(a),
    "copy_": lambda a, b, c: torch._foreach_copy_(a, b),
    "neg_": lambda a, b, c: torch._foreach_neg_(a),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_functional(name, dtype):
    want = CALLS[name](*lists("cpu", 2, dtype), *lists("cpu", 1, dtype, positive=True))
    args = (*lists("tpu", 2, dtype), *lists("tpu", 1, dtype, positive=True))
    CALLS[name](*args)  # the empty tensor gets its value
    before = torch.tpu.metrics()["launches"]
    got = CALLS[name](*args)
    if "tensor" not in name:
        assert torch.tpu.metrics()["launches"] - before == 1
    tol = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-9}[dtype]
    torch.testing.assert_close([t.cpu() for t in got], list(want), rtol=tol, atol=tol)
    assert not [op for op in torch.tpu.fallback_stats() if "_foreach" in op]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    out = {}
    for d in ("cpu", "tpu"):
        a, b = lists(d, 2)
        (c,) = lists(d, 1, positive=True)
        base = torch.zeros(6, 4, device=d)
        a.append(base.t()[::2, 1:4])
        b.append(torch.ones(2, 3, device=d))
        c.append(torch.ones(2, 3, device=d))
        IN_PLACE[name](a, b, c)
        out[d] = [t.cpu() for t in [*a, base]]
    torch.testing.assert_close(out["tpu"], out["cpu"])


def test_integers_promote():
    a = [torch.tensor([1, 2]), torch.tensor(3)]
    b = [t.to("tpu") for t in a]
    for f in (
        lambda x: torch._foreach_add(x, 1.5),
        lambda x: torch._foreach_div(x, 2),
        lambda x: torch._foreach_mul(x, 2),
    ):
        torch.testing.assert_close([t.cpu() for t in f(b)], list(f(a)))
    with pytest.raises(RuntimeError, match="Promotion|can't be cast"):
        torch._foreach_add_(b, 1.5)


def test_mixed_devices():
    a = [torch.ones(2), torch.ones(2, device="tpu")]
    torch._foreach_add_(a, 1.0)
    assert [t.device.type for t in a] == ["cpu", "tpu"] and all((t.cpu() == 2).all() for t in a)


def test_mixed_dtypes():
    for d in ("cpu", "tpu"):
        a = [
            torch.ones(2, device=d),
            torch.ones(2, dtype=torch.float64, device=d),
            torch.ones(2, dtype=torch.int32, device=d),
        ]
        got = torch._foreach_mul(a, 2.5)
        assert [t.dtype for t in got] == [torch.float32, torch.float64, torch.float32]
    with pytest.raises(RuntimeError):
        torch._foreach_add([torch.ones(2, device="tpu")], [torch.ones(2, device="tpu")] * 2)


def test_scalars_do_not_recompile():
    (a,) = lists("tpu")
    torch._foreach_mul_(a, 0.5)
    plans = torch.tpu.metrics()["plans"]
    torch._foreach_mul_(a, 0.25)
    assert torch.tpu.metrics()["plans"] == plans


def test_clip_grad_norm():
    out = {}
    for d in ("cpu", "tpu"):
        ps = [torch.nn.Parameter(t) for t in lists(d)[0]]
        for p in ps:
            p.grad = torch.ones_like(p) * 3
        norm = torch.nn.utils.clip_grad_norm_(ps, 1.0)
        out[d] = [norm.cpu(), *[p.grad.cpu() for p in ps]]
    torch.testing.assert_close(out["tpu"], out["cpu"])
