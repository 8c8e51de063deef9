# SPDX-License-Identifier: Apache-2.0
"""Losses where PyTorch's samples don't look: ignored targets, empty batches, bad targets, CTC."""

import pytest
import torch
import torch.nn.functional as F

import torch_tpu  # noqa: F401


def both(f, *tensors, rtol=1e-5, atol=1e-6, grad=True):
    out = []
    for d in ("cpu", "tpu"):
        args = [t.detach().to(d).requires_grad_(grad and t.is_floating_point()) for t in tensors]
        y = f(*args)
        grads = []
        if grad:
            g = torch.autograd.grad(y.sum(), [a for a in args if a.requires_grad], allow_unused=True)
            grads = [x.cpu() for x in g if x is not None]
        out.append(([y.detach().cpu()], grads))
    torch.testing.assert_close(out[1], out[0], rtol=rtol, atol=atol, equal_nan=True)


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3, 3), (2, 4, 3), (4,)])
def test_nll(shape, reduction):
    x = rand(*shape).log_softmax(-1 if len(shape) == 1 else 1)
    t_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    t = torch.randint(0, 4, t_shape, generator=torch.Generator().manual_seed(1))
    w = torch.tensor([0.5, 1.0, 0.0, 2.0])
    both(lambda x: F.nll_loss(x, t.to(x.device), reduction=reduction, ignore_index=int(t.flatten()[0])), x)
    both(lambda x, w: F.nll_loss(x, t.to(x.device), weight=w.detach(), reduction=reduction, ignore_index=1), x, w)
    t = torch.full_like(t, -100)
    both(lambda x: F.nll_loss(x, t.to(x.device), reduction=reduction), x)


def test_empty():
    for reduction in ("none", "mean", "sum"):
        both(
            lambda x: F.nll_loss(x, torch.zeros(0, dtype=torch.long, device=x.device), reduction=reduction),
            torch.zeros(0, 3),
        )
        both(lambda x: F.mse_loss(x, x.detach(), reduction=reduction), torch.zeros(0, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    x, y = rand(6, 5, dtype=dtype), rand(6, 5, dtype=dtype, seed=1)
    tol = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-9}[dtype]
    for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss):
        both(f, x, y, rtol=tol, atol=tol)
    both(lambda a: F.cross_entropy(a, torch.arange(5, device=a.device).repeat(2)[:6]), x, rtol=tol * 2, atol=tol * 2)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins(reduction):
    x = rand(4, 5)
    t = torch.tensor([0, 4, 2, 2])
    w = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    for p in (1, 2):
        both(
            lambda x: F.multi_margin_loss(
                x, t.to(x.device), p=p, margin=0.7, weight=w.to(x.device), reduction=reduction
            ),
            x,
        )
    labels = torch.tensor([[0, 3, -1, 1, 1], [4, 4, 2, -1, 0], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4]])
    both(lambda x: F.multilabel_margin_loss(x, labels.to(x.device), reduction=reduction), x)
    both(lambda x: F.multilabel_margin_loss(x, labels[0].to(x.device), reduction=reduction), x[0])


def test_smooth_l1_at_the_corner():
    x = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    for beta in (0.0, 0.5, 1.0):
        both(lambda x: torch._C._nn.smooth_l1_loss(x, torch.zeros_like(x), 2, beta), x)


def test_bce_extremes():
    x, t = torch.tensor([0.0, 1.0, 0.5, 1e-30]), torch.tensor([1.0, 0.0, 0.5, 1.0])
    both(lambda x: F.binary_cross_entropy(x, t.to(x.device), reduction="none"), x)
    x = torch.tensor([-200.0, 200.0, 0.0, 3.0])
    both(
        lambda x: F.binary_cross_entropy_with_logits(
            x, t.to(x.device), pos_weight=torch.tensor([2.0], device=x.device)
        ),
        x,
    )


@pytest.mark.parametrize("name", ["nll", "nll negative", "bce", "multi margin", "huber delta"])
def test_errors(name):
    def f(d):
        x = torch.rand(2, 3, device=d)
        if name == "nll":
            return F.nll_loss(x, torch.tensor([0, 3], device=d))
        if name == "nll negative":
            return F.nll_loss(x, torch.tensor([0, -2], device=d))
        if name == "bce":
            return F.binary_cross_entropy(x + 1, x)
        if name == "multi margin":
            return F.multi_margin_loss(x, torch.tensor([0, 3], device=d))
        return F.huber_loss(x, x, delta=-1.0)

    with pytest.raises(Exception) as want:
        f("cpu")
    with pytest.raises(want.type) as got:
        f("tpu")
    assert str(got.value)[:30] == str(want.value)[:30]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lists", [False, True])
def test_ctc(reduction, packed, lists):
    lp = rand(12, 4, 6).log_softmax(-1)
    lengths, targets = [12, 10, 0, 5], [5, 2, 0, 4]
    rows = torch.tensor([[1, 1, 2, 3, 5], [4, 4, 1, 1, 1], [1, 1, 1, 1, 1], [2, 3, 2, 3, 1]])
    t = torch.cat([r[:n] for r, n in zip(rows, targets, strict=True)]) if packed else rows

    def f(x, device=None):
        a, b = (lengths, targets) if lists else (torch.tensor(lengths), torch.tensor(targets))
        return F.ctc_loss(x, t.to(x.device), a, b, blank=0, reduction=reduction, zero_infinity=True)

    both(f, lp, rtol=1e-4, atol=1e-5)


def test_ctc_impossible_and_lengths_do_not_recompile():
    lp = rand(5, 2, 4).log_softmax(-1)
    t = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 1]])
    for zero in (False, True):
        both(
            lambda x: F.ctc_loss(x, t.to(x.device), (5, 5), (4, 4), zero_infinity=zero, reduction="sum"),
            lp,
            rtol=1e-4,
            atol=1e-5,
            grad=zero,
        )
    x = lp.to("tpu")
    F.ctc_loss(x, t.to("tpu"), torch.tensor([5, 5]), torch.tensor([2, 2]))
    plans = torch.tpu.metrics()["plans"]
    F.ctc_loss(x, t.to("tpu"), torch.tensor([5, 4]), torch.tensor([1, 3]))
    assert torch.tpu.metrics()["plans"] == plans
