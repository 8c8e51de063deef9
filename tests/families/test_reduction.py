# SPDX-License-Identifier: Apache-2.0
"""Reductions, scans, softmaxes, sorts and searches: what PyTorch's operator samples leave out."""

import pytest
import torch

import torch_tpu  # noqa: F401

nan, inf = float("nan"), float("inf")


def same(f, *tensors, exact=True, rtol=1e-5, atol=1e-6):
    want = f(*tensors)
    got = f(*(t.to("tpu") for t in tensors))
    if isinstance(want, torch.Tensor):
        want, got = (want,), (got,)
    for w, g in zip(want, got, strict=True):
        assert g.device.type == "tpu"
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": rtol, "atol": atol}
        if w.dtype.itemsize == 2:
            tolerance = {}
        torch.testing.assert_close(g.cpu(), w, equal_nan=True, **tolerance)


def raises_alike(f, *tensors):
    with pytest.raises(Exception) as cpu:
        f(*tensors)
    with pytest.raises(cpu.type):
        f(*(t.to("tpu") for t in tensors))


TIES = torch.tensor([[1.0, nan, 3.0, nan], [4.0, 4.0, -1.0, 4.0], [-inf, -inf, -inf, -inf], [0.0, -0.0, inf, 0.0]])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.max(1),
        lambda x: x.min(0),
        lambda x: x.max(),
        lambda x: x.argmax(),
        lambda x: x.argmin(1),
        lambda x: x.argmax(1, keepdim=True),
        lambda x: x.argmax(keepdim=True),
        lambda x: x.amin((0, 1)),
        lambda x: torch.aminmax(x, dim=1),
        lambda x: x.sort(dim=1, stable=True),
        lambda x: x.sort(dim=0, descending=True, stable=True),
        lambda x: x.median(),
        lambda x: x.nanmedian(),
        lambda x: x.median(1)[0],
        lambda x: x.nanmedian(1)[0],
        lambda x: x.kthvalue(2, 1)[0],
        lambda x: x.topk(2)[0],
        lambda x: x.topk(3, largest=False)[0],
        lambda x: x.mode(1),
        lambda x: x.cummax(1),
        lambda x: x.cummin(0),
        lambda x: x.nansum(),
        lambda x: x.softmax(1),
        lambda x: x.logsumexp(1),
        lambda x: x.any(1),
        lambda x: x.all(),
        lambda x: torch._safe_softmax(x, 1),
        lambda x: x.count_nonzero(1),
        lambda x: x.norm(inf, 1),
        lambda x: x.logcumsumexp(1),
    ],
)
def test_nan_ties_and_infinities(f):
    same(f, TIES, exact=False)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sum(0),
        lambda x: x.prod(-1),
        lambda x: x.max(0),
        lambda x: x.argmin(),
        lambda x: x.argmax(0),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(-1),
        lambda x: x.cummax(0),
        lambda x: x.logcumsumexp(0),
        lambda x: x.sort(),
        lambda x: x.topk(1),
        lambda x: x.kthvalue(1),
        lambda x: x.median(0),
        lambda x: x.mode(),
        lambda x: x.softmax(0),
        lambda x: x.log_softmax(-1),
        lambda x: x.any(0),
        lambda x: x.all((0,)),
        lambda x: x.norm(),
        lambda x: x.var(0, correction=0),
        lambda x: torch.isin(x, x),
        lambda x: x.logsumexp(0),
    ],
)
def test_zero_dimensional(f):
    same(f, torch.tensor(2.5), exact=False)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sum(0),
        lambda x: x.prod(),
        lambda x: x.mean(),
        lambda x: x.mean(0),
        lambda x: x.var(0),
        lambda x: x.any(0),
        lambda x: x.all(),
        lambda x: x.amax(1),
        lambda x: x.cumsum(0),
        lambda x: x.cummax(1),
        lambda x: x.sort(0),
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(0),
        lambda x: x.norm(),
        lambda x: x.norm(1, 0),
        lambda x: x.median(),
        lambda x: x.median(1),
        lambda x: x.topk(0, 0),
        lambda x: x.count_nonzero(),
        lambda x: torch.cdist(x, x),
        lambda x: x.logcumsumexp(0),
        lambda x: x.max(1),
        lambda x: x.argmax(1),
        lambda x: x.logsumexp(0),
        lambda x: torch.searchsorted(x.flatten(), x),
        lambda x: torch.isin(x, x),
    ],
)
def test_empty(f):
    same(f, torch.empty(0, 3))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.max(),
        lambda x: x.max(0),
        lambda x: x.amax(),
        lambda x: x.median(0),
        lambda x: x.mode(0),
        lambda x: x.norm(inf),
        lambda x: x.sum(2),
        lambda x: x.sum((0, 0)),
        lambda x: x.cumsum(5),
        lambda x: x.topk(9),
        lambda x: x.kthvalue(9),
        lambda x: x.to(torch.int64).mean(),
        lambda x: x.sort(3),
        lambda x: x.softmax(4),
        lambda x: torch.searchsorted(x, torch.ones(2, 2)),
        lambda x: x.histc(0),
        lambda x: x.to(torch.complex64).sort(),
        lambda x: torch.ones(2, 2).to(x.device, torch.int64).softmax(0),
    ],
)
def test_bad_calls_raise_the_class_of_the_cpu(f):
    raises_alike(f, torch.empty(0, 3))


def test_integers_are_exact_and_wrap():
    big = torch.tensor([2**62, 2**62 - 1, -(2**63), 5, 2**63 - 1, 2**40])
    for f in (
        torch.sum,
        torch.prod,
        torch.max,
        torch.argmin,
        lambda x: x.sort(),
        lambda x: x.sort(descending=True),
        lambda x: x.cumsum(0),
        lambda x: x.topk(3),
        lambda x: x.topk(2, largest=False),
        lambda x: x.median(),
        lambda x: torch.isin(x, x[1:3]),
        lambda x: torch.searchsorted(x.sort()[0], x, right=True),
    ):
        same(f, big)
    same(lambda x: x.sort(), big.to(torch.float64) / 3)


@pytest.mark.parametrize("dtype", [None, torch.uint8, torch.int16, torch.float32, torch.float64])
def test_dtype_argument_is_no_shared_plan(dtype):
    x = torch.randint(0, 200, (3, 70), dtype=torch.uint8)
    for f in (lambda x: x.sum(1, dtype=dtype), lambda x: x.cumsum(-1, dtype=dtype), lambda x: x.prod(dtype=dtype)):
        same(f, x, exact=False)


def test_bool_and_half():
    b = torch.tensor([[True, False, True], [False, False, False]])
    for f in (
        torch.sum,
        lambda x: x.cumsum(1),
        lambda x: x.max(1),
        lambda x: x.sort(dim=1, stable=True),
        torch.any,
        lambda x: x.all(1),
        lambda x: x.to(torch.uint8).any(1),
        lambda x: x.any(dim=()),
        lambda x: x.prod(),
    ):
        same(f, b)
    h = torch.randn(4, 300).to(torch.bfloat16)
    for f in (
        lambda x: x.sum(1),
        lambda x: x.softmax(1),
        lambda x: torch.softmax(x, 1, dtype=torch.float32),
        lambda x: x.var(1),
        lambda x: x.log_softmax(1),
        lambda x: x.topk(5)[0],
        lambda x: x.sort(1)[0],
        lambda x: x.norm(),
    ):
        same(f, h, exact=False)


def test_float32_sums_do_not_saturate():
    n = (1 << 24) + 1001
    assert torch.ones(n, device="tpu").sum().item() == pytest.approx(n, rel=1e-6)
    x = torch.full((1 << 20,), 0.1)
    assert abs(x.to("tpu").cumsum(0)[-1].item() - x.double().sum().item()) < 0.2
    assert abs(x.to("tpu").sum().item() - x.double().sum().item()) < 0.2


def test_views_in_place_and_out():
    x = torch.randn(6, 8)
    same(lambda x: x.t()[1:7:2].sum(1), x, exact=False)
    same(lambda x: x[:, ::3].sort(0), x)
    same(lambda x: x.flip(0)[2:].cumsum(0), x, exact=False)

    def in_place(x):
        y = x.clone()
        y[:, 1:5].cumsum_(1)
        y[1:3].renorm_(2, 0, 0.5)
        return y

    same(in_place, x, exact=False)

    def out(x):
        values, indices = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.long, device=x.device)
        torch.sort(x, 1, out=(values, indices))
        s, m = torch.empty(0, device=x.device), torch.empty(0, device=x.device)
        torch.sum(x, 0, out=s)
        torch.cummax(x, 0, out=(m, i2 := torch.empty(0, dtype=torch.long, device=x.device)))
        return values, indices, s, m, i2

    same(out, x, exact=False)


@pytest.mark.parametrize("n", [1, 5, 64, 65, 1000])
@pytest.mark.parametrize("right", [False, True])
def test_search(n, right):
    edges = torch.randn(n).sort()[0]
    v = torch.cat([torch.randn(50), edges[:20], torch.tensor([inf, -inf, nan])])
    same(lambda e, v: torch.searchsorted(e, v, right=right), edges, v)
    same(lambda e, v: torch.bucketize(v, e, right=right, out_int32=True), edges, v)
    same(
        lambda e, v: torch.searchsorted(e.expand(3, n).contiguous(), v.expand(3, -1).contiguous(), right=right),
        edges,
        v,
    )
    same(
        lambda e, v: torch.searchsorted(e.flip(0), v, sorter=torch.arange(n - 1, -1, -1).to(e.device), right=right),
        edges,
        v,
    )
    same(lambda e, v: torch.isin(v, e), edges, v)
    same(lambda e, v: torch.isin(v, e, invert=True), edges, v)


@pytest.mark.parametrize("mask_type", [0, 1, 2])
def test_masked_softmax(mask_type):
    x = torch.randn(2, 3, 5, 5)
    shape = {0: (5, 5), 1: (2, 5), 2: (2, 3, 5, 5)}[mask_type]
    mask = torch.rand(shape) > 0.7
    mask[..., 0] = False
    same(lambda x, m: torch._masked_softmax(x, m, -1, mask_type), x, mask, exact=False)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf])
def test_distances_and_gradients(p):
    a, b = torch.randn(2, 7, 3), torch.randn(5, 3)
    b[0] = a[0, 0]

    def run(a, b):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        d = torch.cdist(a, b, p)
        (d * d).sum().backward()
        e = torch.pdist(b, p)
        return (d.detach(), a.grad, b.grad, e.detach(), *torch.autograd.grad(e.sum(), b))

    same(run, a, b, exact=False, rtol=1e-3, atol=1e-5)


def test_equal_reads_one_bit():
    x = torch.randn(3, 4, device="tpu")
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1) and not torch.equal(x, x[:2])
    assert torch.equal(x[:0], x[:0]) and not torch.equal(x / 0 * 0, x / 0 * 0)
    with pytest.raises(RuntimeError):
        torch.equal(x, x.cpu())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("bins, low, high", [(8, 0, 7), (4, 0, 7), (5, 2, 6), (3, 0, 0), (8, 0, 100)])
def test_histc_counts_integers(dtype, bins, low, high):
    """As CUDA; the CPU takes floats alone. Transformers counts the tokens of each expert so."""
    x = torch.randint(0, 8, (100,)).to(dtype)
    got = torch.histc(x.to("tpu"), bins, low, high)
    assert got.dtype == dtype and torch.equal(got.cpu().double(), torch.histc(x.double(), bins, low, high))
