# SPDX-License-Identifier: Apache-2.0
"""torch.tpu.ops against plain PyTorch."""

import pytest
import torch

ops = torch.tpu.ops

SIZES = {"even": [3, 3, 3], "uneven": [0, 7, 2], "rows left over": [1, 0, 4], "one": [9]}


def looped(x, w, sizes):
    y, at = torch.zeros(x.shape[0], w.shape[2]), 0
    for matrix, n in zip(w, sizes, strict=True):
        y = torch.cat([y[:at], x[at : at + n] @ matrix, y[at + n :]])
        at += n
    return y


@pytest.mark.parametrize("name", SIZES)
def test_ragged_dot(name):
    torch.manual_seed(0)
    sizes = SIZES[name]
    x, w, dy = torch.randn(9, 4), torch.randn(len(sizes), 4, 5), torch.randn(9, 5)
    host = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    want = looped(*host, sizes)
    want.backward(dy)
    tpu = [x.to("tpu").requires_grad_(), w.to("tpu").requires_grad_()]
    got = ops.ragged_dot(*tpu, torch.tensor(sizes, device="tpu"))
    got.backward(dy.to("tpu"))
    torch.testing.assert_close(got.cpu(), want)
    for t, h in zip(tpu, host, strict=True):
        torch.testing.assert_close(t.grad.cpu(), h.grad)


def test_ragged_dot_compiles_once_for_all_sizes():
    x, w = torch.ones(8, 2, device="tpu", dtype=torch.bfloat16), torch.ones(2, 2, 3, device="tpu", dtype=torch.bfloat16)
    plans = set()
    for n in range(4):
        assert ops.ragged_dot(x, w, torch.tensor([n, 8 - n], device="tpu")).sum().item() == 48
        plans.add(torch.tpu.metrics()["plans"])
    assert len(plans) == 1


def test_ragged_dot_twice_differentiable_and_compiled():
    x = torch.randn(5, 2, device="tpu", requires_grad=True)
    w = torch.randn(2, 2, 3, device="tpu", requires_grad=True)
    sizes = torch.tensor([2, 3], device="tpu")
    dx, dw = torch.autograd.grad(ops.ragged_dot(x, w, sizes).square().sum(), (x, w), create_graph=True)
    (dx.sum() + dw.sum()).backward()
    assert x.grad.isfinite().all() and w.grad.isfinite().all()
    compiled = torch.compile(ops.ragged_dot, backend="tpu")
    torch.testing.assert_close(compiled(x, w, sizes), ops.ragged_dot(x, w, sizes))


@pytest.mark.parametrize(
    "bad",
    [
        lambda x, w, s: ops.ragged_dot(x, w.bfloat16(), s),
        lambda x, w, s: ops.ragged_dot(x, w[:1], s),
        lambda x, w, s: ops.ragged_dot(x, w, s.float()),
        lambda x, w, s: ops.ragged_dot(x.int(), w.int(), s),
        lambda x, w, s: ops.ragged_dot_weight_grad(x, w[0], s),
    ],
)
def test_refused(bad):
    with pytest.raises(RuntimeError, match="ragged_dot"):
        bad(torch.ones(5, 2, device="tpu"), torch.ones(2, 2, 3, device="tpu"), torch.tensor([2, 3], device="tpu"))


def test_jagged_padding():
    rows = [torch.randn(3, 2, device="tpu"), torch.randn(4, 2, device="tpu")]
    nt = torch.nested.nested_tensor(rows, layout=torch.jagged)
    padded = ops.align_jagged_to_multiple(nt, 8, padding_value=5)
    assert padded.values().shape == (8, 2) and padded.values()[7].tolist() == [5, 5]
    assert ops.align_jagged_to_multiple(padded, 8) is padded
    for stripped in (ops.strip_jagged_padding(padded), ops.strip_jagged_padding(padded, 7)):
        assert torch.equal(stripped.values().cpu(), nt.values().cpu())
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(stripped.unbind(), rows, strict=True))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_pool(dims):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[7] * dims)
    pool, backward = getattr(ops, f"max_pool{dims}d"), getattr(ops, f"max_pool{dims}d_backward")
    host = x.clone().requires_grad_()
    want, places = getattr(torch.nn.functional, f"max_pool{dims}d")(host, 3, 2, 1, return_indices=True)
    got, at = pool(x.to("tpu"), 3, 2, 1)
    dy = torch.randn_like(want)
    want.backward(dy)
    assert torch.equal(got.cpu(), want) and torch.equal(at.cpu(), places)
    torch.testing.assert_close(backward(dy.to("tpu"), x.to("tpu"), at).cpu(), host.grad)


def test_optimization_barrier():
    x, y = torch.ones(2, device="tpu", requires_grad=True), torch.arange(3, device="tpu")
    a, b = ops.optimization_barrier(x * 2, y)
    assert a.tolist() == [2, 2] and b.tolist() == [0, 1, 2]
    a.sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert ops.optimization_barrier(y).tolist() == [0, 1, 2]
