# SPDX-License-Identifier: Apache-2.0
"""Indexing beyond PyTorch's samples: bad indices, masks, duplicates, views, sizes that depend on data."""

import conformance
import pytest
import torch

import torch_tpu  # noqa: F401

X = torch.arange(24.0).reshape(2, 3, 4)


def same(f, *tensors):
    """f on copies of the tensors, on the CPU and on tpu."""
    want = f(*(t.clone() for t in tensors))
    got = f(*(t.to("tpu") for t in tensors))
    for g, w in zip(flat(got), flat(want), strict=True):
        assert g.device.type == "tpu"
        torch.testing.assert_close(g.cpu(), w, rtol=1e-5, atol=1e-6, equal_nan=True)


def flat(x):
    return [x] if isinstance(x, torch.Tensor) else [t for part in x for t in flat(part)]


def error(f, *tensors):
    with pytest.raises(Exception) as info:
        f(*tensors)
    return info.type, str(info.value).splitlines()[0]


def same_error(f, *tensors, text=True):
    want = error(f, *(t.clone() for t in tensors))
    got = error(f, *(t.to("tpu") for t in tensors))
    assert got[0] is want[0]
    if text:
        assert got[1] == want[1]


i = torch.tensor([1, 0, -1])
j = torch.tensor([[2], [0]])
row_mask = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i, j, m: x[0, i],
        lambda x, i, j, m: x[:, i, j],
        lambda x, i, j, m: x[j % 2, :, i],  # indices apart: their dimensions come first
        lambda x, i, j, m: x[:, m],
        lambda x, i, j, m: x[:, m, 1:3],
        lambda x, i, j, m: x[1, m, torch.tensor([0, 3], device=x.device)],
        lambda x, i, j, m: x[x > 5],
        lambda x, i, j, m: x[x > 99],
        lambda x, i, j, m: x[..., i.int()],
        lambda x, i, j, m: x[:, torch.tensor([2, 0])],  # an index on the CPU
        lambda x, i, j, m: x[:, torch.tensor([True, False, True])],
        lambda x, i, j, m: x.transpose(0, 2)[i, 1],
        lambda x, i, j, m: x[torch.empty(0, dtype=torch.long, device=x.device)],
        lambda x, i, j, m: x[:, m.to(torch.uint8)],
    ],
)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_read(f):
    same(f, X, i, j, row_mask)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, m: x.__setitem__(x > 5, 7.0),
        lambda x, m: x.__setitem__((slice(None), m), -1.0),
        lambda x, m: x.__setitem__((slice(None), m), torch.arange(4.0, device=x.device)),
        lambda x, m: x.__setitem__((slice(None), m), torch.arange(8.0, device=x.device).reshape(2, 4)),
        lambda x, m: x.__setitem__((slice(None), m), torch.arange(16.0, device=x.device).reshape(2, 2, 4)),
        lambda x, m: x[:, 1:].__setitem__((slice(None), torch.tensor([0, 1, 0], device=x.device)), 3.0),
        lambda x, m: x.transpose(0, 2).index_put_((torch.tensor([0, 0, 3], device=x.device),), torch.tensor(2.0), True),
        lambda x, m: x.index_put_((x > 5,), torch.tensor(2.0, device=x.device), accumulate=True),
        lambda x, m: x.masked_scatter_(x > 20, torch.arange(5.0, device=x.device)),
    ],
)
def test_write(f):
    same(lambda x, m: (f(x, m), x)[1], X, row_mask)


bad = torch.tensor([0, 9])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[i],
        lambda x, i: x[-i],
        lambda x, i: x.index_put_((i,), torch.tensor(1.0)),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None, None]),
        lambda x, i: x.scatter(0, i[:, None, None], 1.0),
        lambda x, i: x.scatter_add(0, i[:, None, None], x),
        lambda x, i: x.index_add(0, i, x),
        lambda x, i: x.index_copy(0, i, x),
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.take(i * 9),
        lambda x, i: x.put(i * 9, x[0, 0, :2]),
        lambda x, i: torch.nn.functional.embedding(i, x[0]),
        lambda x, i: x.masked_scatter(x > 5, x[0]),
        lambda x, i: x[torch.ones(3, dtype=torch.bool, device=x.device)],
        lambda x, i: x[i.float()],
        lambda x, i: x[i.to(torch.int8)],
        lambda x, i: x[i % 2, torch.arange(3, device=x.device)],
        lambda x, i: x[i, i, i, i],
        lambda x, i: x.index_put_((i % 2,), torch.ones(5, device=x.device)),
        lambda x, i: torch.bincount(-i),
        lambda x, i: torch.repeat_interleave(-i),
        lambda x, i: torch.cat([]),
    ],
)
def test_errors(f):
    same_error(f, X, bad)


def test_histc_bounds():
    same_error(lambda x: torch.histc(x, 4, 3, 1), X, text=False)  # PyTorch's meta kernel words it otherwise


def test_usable_after_an_error():
    x = torch.zeros(4, device="tpu")
    with pytest.raises(IndexError):
        x[torch.tensor([1, 9], device="tpu")] = 1.0
    assert x.cpu()[2:].tolist() == [0, 0] and (x + 1).cpu()[3] == 1


def test_duplicates_count():
    index, values = torch.tensor([1, 1, 1, 0]), torch.tensor([1.0, 2, 3, 4])
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        v = values.to(dtype)
        same(lambda x, i, v: x.index_put((i,), v, accumulate=True), torch.zeros(3, dtype=dtype), index, v)
        same(lambda x, i, v: x.scatter_add(0, i, v), torch.zeros(3, dtype=dtype), index, v)
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            for include in (True, False):
                same(
                    lambda x, i, v: x.scatter_reduce(0, i, v, reduce, include_self=include),
                    torch.ones(3, dtype=dtype) * -7,
                    index,
                    v,
                )


def test_nan_wins_in_scatter_reduce():
    same(
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        torch.zeros(2),
        torch.tensor([0, 0, 1]),
        torch.tensor([float("nan"), 1, 1]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_unique(dtype):
    x = torch.tensor([[3, 1, 1], [0, 3, 1]]).to(dtype)
    same(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    same(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x)
    for dim in (0, 1):
        same(lambda x: torch.unique(x, dim=dim, return_inverse=True, return_counts=True), x)
    same(lambda x: torch.unique(x), x[:0])


def test_unique_keeps_every_nan():
    same(lambda x: torch.unique(x, return_counts=True), torch.tensor([float("nan"), 1, float("nan"), -0.0, 0.0]))


def test_counts():
    c = torch.tensor([2, 0, 3, 1])
    same(lambda c: torch.repeat_interleave(c), c)
    same(lambda c: torch.repeat_interleave(c, output_size=6), c.int())
    same(lambda c: torch.bincount(c, minlength=9), c)
    same(lambda c: torch.bincount(c, weights=c.double()), c)
    same(lambda c: torch.nonzero_static(c, size=5), c)
    same(lambda c: torch.nonzero(c[0]), c)
    same(lambda x: torch.histc(x, 5), X)
    same(lambda x: torch.histc(x, 3, 2, 7), X)


def test_a_new_count_is_no_new_program():
    x = torch.rand(64).to("tpu")
    torch.nonzero(x > 0.5)
    for k in range(33, 64, 3):
        mask = torch.arange(64) < k
        got = torch.nonzero(mask.to("tpu"))
        assert got.cpu().equal(torch.nonzero(mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32])
def test_sequences(dtype):
    for make in (
        lambda d: torch.arange(-3, 9, 2, dtype=dtype, device=d),
        lambda d: torch.linspace(-5, 5, 4, dtype=dtype, device=d),
        lambda d: torch.linspace(3, 10, 1, dtype=dtype, device=d),
        lambda d: torch.linspace(0, 7, 9, dtype=dtype, device=d),
        lambda d: torch.logspace(0, 3, 4, dtype=dtype, device=d),
        lambda d: torch.eye(3, 5, dtype=dtype, device=d),
        lambda d: torch.range(1, 4, dtype=dtype, device=d),
    ):
        torch.testing.assert_close(make("tpu").cpu(), make("cpu"))


def test_arange_is_one_program_for_every_start():
    for k in range(4):
        assert torch.arange(k, k + 5, device="tpu").cpu().tolist() == list(range(k, k + 5))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode, padding, last):
    offsets = torch.tensor([0, 2, 2, 5] if last else [0, 2, 2])

    def f(w, i, offsets):
        w.requires_grad_()
        y = torch.nn.functional.embedding_bag(i, w, offsets, mode=mode, padding_idx=padding, include_last_offset=last)
        return y.detach(), torch.autograd.grad(y.pow(2).sum(), w)

    same(f, torch.randn(4, 3), torch.tensor([0, 1, 2, 1, 3]), offsets)


def test_embedding_renorm():
    same(
        lambda w, i: (torch.nn.functional.embedding(i, w, max_norm=1.0), w),
        torch.randn(4, 3) * 3,
        torch.tensor([0, 2, 2]),
    )


def test_embedding_gradient_by_frequency():
    def f(w, i):
        w.requires_grad_()
        y = torch.nn.functional.embedding(i, w, padding_idx=0, scale_grad_by_freq=True)
        return torch.autograd.grad(y.pow(2).sum(), w)

    same(f, torch.randn(4, 3), torch.tensor([0, 2, 2, 1]))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(reduce):
    def f(x, lengths):
        x.requires_grad_()
        y = torch.segment_reduce(x, reduce, lengths=lengths, axis=0, initial=1.0)
        return y.detach(), torch.autograd.grad(y.sum(), x)

    same(f, torch.tensor([[1.0, 0], [2, 3], [0, 5], [4, 4]]), torch.tensor([1, 0, 3]))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.cat([x, torch.empty(0, device=x.device), x.long()]),
        lambda x: torch.stack([x, x.int()], -1),
        lambda x: x.roll((1, -5), (0, 2)),
        lambda x: x.roll(30),
        lambda x: x.repeat(2, 1, 3, 0),
        lambda x: x.repeat(2, 1, 1, 2),
        lambda x: x.tril(-1),
        lambda x: x.triu(9),
        lambda x: torch.diag_embed(x, -1, 0, 2),
        lambda x: x.slice_scatter(torch.ones(2, 3, 2, device=x.device), 2, -3, None, 2),
        lambda x: x.select_scatter(torch.ones(2, 4, device=x.device), 1, -1),
        lambda x: x.diagonal_scatter(torch.ones(4, 2, device=x.device), 1),
        lambda x: torch.block_diag(x[0], x[0, 0], torch.tensor(3, device=x.device)),
        lambda x: torch.tril_indices(3, 5, 1, device=x.device),
        lambda x: torch.triu_indices(4, 2, -1, device=x.device),
    ],
)
def test_layout(f):
    same(f, X)


@pytest.mark.parametrize("size,step", [(2, 1), (3, 2), (1, 3)])
def test_unfold_gradient(size, step):
    def f(x):
        x.requires_grad_()
        y = x.unfold(2, size, step)
        return torch.autograd.grad((y * y).sum(), x)

    same(f, X)


@pytest.mark.parametrize("count", [3, 16, 24])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_of_a_mask_out_of_place(count: int, accumulate: bool) -> None:
    # A count that is no power of two: positions padded to one would want as many values.
    torch.manual_seed(0)
    x, mask = torch.randn(2, 12, 4), torch.zeros(2, 12, dtype=torch.bool)
    mask.view(-1)[torch.randperm(24)[:count]] = True
    for values in (torch.randn(count, 4), torch.randn(4), torch.randn(1, 4)):
        want = x.index_put([mask], values, accumulate)
        tx, tmask, tvalues = conformance.on_tpu((x, mask, values))
        conformance.close(tx.index_put([tmask], tvalues, accumulate), want)


def test_gradient_of_values_written_at_a_mask() -> None:
    torch.manual_seed(0)
    x, values, mask = torch.randn(2, 12, 4), torch.randn(5, 4), torch.zeros(2, 12, dtype=torch.bool)
    mask.view(-1)[[0, 3, 7, 11, 23]] = True

    def gradients(x: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_(), values.clone().requires_grad_()]
        written = leaves[0].clone()
        written[mask] = leaves[1]
        return [*torch.autograd.grad(written.square().sum(), leaves)]

    conformance.close(gradients(*conformance.on_tpu((x, values, mask))), gradients(x, values, mask))


def test_masked_fill_takes_a_number_from_the_cpu() -> None:
    x, mask, value = torch.randn(3, 4), torch.rand(3, 4) > 0.5, torch.tensor(-1.0)
    tx, tmask = conformance.on_tpu((x, mask))
    conformance.close(tx.masked_fill(tmask, value), x.masked_fill(mask, value))
    conformance.close(tx.clone().masked_fill_(tmask, value), x.masked_fill(mask, value))
    conformance.close(tx.half().masked_fill(tmask, value), x.half().masked_fill(mask, value))
    with pytest.raises(RuntimeError, match="same device"):
        tx.masked_fill(tmask, torch.ones(2))
