# SPDX-License-Identifier: Apache-2.0
"""The collectives of c10d, against what they must give computed on the CPU."""

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import on_ranks
from torch.distributed import ReduceOp

ALL_DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
FLOATING = [t for t in ALL_DTYPES if t.is_floating_point]
INTEGERS = [t for t in ALL_DTYPES if not t.is_floating_point and not t.is_complex and t != torch.bool]


def of_rank(rank: int, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    """What a rank gives, on the CPU: the same on whichever rank it is computed."""
    generator = torch.Generator().manual_seed(rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(sizes, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randint(-4, 5, sizes, generator=generator).to(dtype)
    return torch.randint(0, 5, sizes, generator=generator).to(dtype)


def reduced(op: ReduceOp.RedOpType, values: list[torch.Tensor]) -> torch.Tensor:
    dtype = values[0].dtype
    wide = torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else torch.int64
    rows = torch.stack([v.to(wide) for v in values])
    result = {
        ReduceOp.SUM: lambda: rows.sum(0),
        ReduceOp.AVG: lambda: rows.sum(0) / len(values),
        ReduceOp.PRODUCT: lambda: rows.prod(0),
        ReduceOp.MIN: lambda: rows.amin(0),
        ReduceOp.MAX: lambda: rows.amax(0),
        ReduceOp.BAND: lambda: functools_reduce(torch.bitwise_and, rows),
        ReduceOp.BOR: lambda: functools_reduce(torch.bitwise_or, rows),
        ReduceOp.BXOR: lambda: functools_reduce(torch.bitwise_xor, rows),
    }[op]()
    return result.trunc().to(dtype) if dtype in INTEGERS and op == ReduceOp.AVG else result.to(dtype)


def functools_reduce(f, rows: torch.Tensor) -> torch.Tensor:
    out = rows[0]
    for row in rows[1:]:
        out = f(out, row)
    return out


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.device.type == "tpu"
    if wanted.dtype.itemsize == 1 and wanted.dtype.is_floating_point:  # assert_close doesn't take float8
        got, wanted = got.cpu().float(), wanted.float()
    torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@on_ranks(2, 4)
def test_all_reduce(dtype: torch.dtype) -> None:
    n = dist.get_world_size()
    ops = [ReduceOp.SUM]
    if dtype != torch.bool:
        ops.append(ReduceOp.AVG)
    if not dtype.is_complex:
        ops += [ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    if dtype in INTEGERS or dtype == torch.bool:
        ops += [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    for op in ops:
        for sizes in ((3, 5), (1,), (0,), ()):
            values = [of_rank(r, dtype, *sizes) for r in range(n)]
            x = values[dist.get_rank()].to("tpu")
            dist.all_reduce(x, op)
            close(x, reduced(op, values))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@on_ranks(4)
def test_moves_every_dtype(dtype: torch.dtype) -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    values = [of_rank(r, dtype, 4, 3) for r in range(n)]
    mine = values[rank].to("tpu")

    x = mine.clone()
    dist.broadcast(x, src=1)
    close(x, values[1])

    outs = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(outs, mine)
    for out, value in zip(outs, values, strict=True):
        close(out, value)

    whole = torch.empty(4 * n, 3, dtype=dtype, device="tpu")
    dist.all_gather_single(whole, mine)
    close(whole, torch.cat(values))

    outs = [torch.empty_like(mine) for _ in range(n)] if rank == 2 else None
    dist.gather(mine, outs, dst=2)
    if outs:
        for out, value in zip(outs, values, strict=True):
            close(out, value)

    out = torch.empty_like(mine)
    dist.scatter(out, [v.to("tpu") for v in values] if rank == 0 else None, src=0)
    close(out, values[rank])

    out = torch.empty_like(mine)
    dist.all_to_all_single(out, mine)
    close(out, torch.cat([v[rank : rank + 1] for v in values]))

    outs = [torch.empty(1, 3, dtype=dtype, device="tpu") for _ in range(n)]
    dist.all_to_all(outs, list(mine.split(1)))
    for out, value in zip(outs, values, strict=True):
        close(out, value[rank : rank + 1])

    if rank == 0:
        dist.send(mine, 1, tag=7)
    elif rank == 1:
        out = torch.empty_like(mine)
        assert dist.recv(out, tag=7) == 0
        close(out, values[0])


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int16], ids=str)
@on_ranks(2, 4)
def test_reduce_and_reduce_scatter(op: ReduceOp.RedOpType, dtype: torch.dtype) -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    values = [of_rank(r, dtype, 2 * n, 3) for r in range(n)]
    total = reduced(op, values)
    x = values[rank].to("tpu")
    dist.reduce(x, dst=1, op=op)
    close(x, total if rank == 1 else values[rank])

    x = values[rank].to("tpu")
    out = torch.empty(2, 3, dtype=dtype, device="tpu")
    dist.reduce_scatter_single(out, x, op)
    close(out, total[2 * rank : 2 * rank + 2])
    out = torch.empty(2, 3, dtype=dtype, device="tpu")
    dist.reduce_scatter(out, list(x.split(2)), op)
    close(out, total[2 * rank : 2 * rank + 2])


@on_ranks(4)
def test_uneven_sizes() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    # rank i gives i + j + 1 rows to rank j
    give = [rank + j + 1 for j in range(n)]
    rows = torch.cat([torch.full((count, 2), 10.0 * rank + j) for j, count in enumerate(give)]).to("tpu")
    out = torch.empty(sum(give), 2, device="tpu")
    dist.all_to_all_single(out, rows, give, give)
    close(out, torch.cat([torch.full((i + rank + 1, 2), 10.0 * i + rank) for i in range(n)]))
    outs = [torch.empty(i + rank + 1, 2, device="tpu") for i in range(n)]
    dist.all_to_all(outs, list(rows.split(give)))
    for i, part in enumerate(outs):
        close(part, torch.full((i + rank + 1, 2), 10.0 * i + rank))

    outs = [torch.empty(r, 2, device="tpu") for r in range(n)]
    dist.all_gather(outs, torch.full((rank, 2), float(rank), device="tpu"))
    for r, part in enumerate(outs):
        close(part, torch.full((r, 2), float(r)))

    sizes = [r + 1 for r in range(n)]
    values = [of_rank(r, torch.float32, sum(sizes)) for r in range(n)]
    out = torch.empty(rank + 1, device="tpu")
    dist.reduce_scatter(out, list(values[rank].to("tpu").split(sizes)))
    close(out, torch.stack(values).sum(0).split(sizes)[rank])


@on_ranks(2)
def test_views_and_values_at_the_call() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    base = torch.arange(24.0, device="tpu").reshape(4, 6) * (rank + 1)
    wanted = torch.arange(24.0).reshape(4, 6) * (rank + 1)
    sums = torch.arange(24.0).reshape(4, 6) * 3
    dist.all_reduce(base[1:3])
    wanted[1:3] = sums[1:3]
    close(base, wanted)
    dist.all_reduce(base.t()[0])
    wanted[0, 0], wanted[3, 0] = sums[0, 0], sums[3, 0]
    wanted[1:3, 0] *= 2
    close(base, wanted)

    # What is written after the call doesn't reach the others.
    x = torch.full((1000,), float(rank + 1), device="tpu")
    outs = [torch.empty_like(x) for _ in range(n)]
    work = dist.all_gather(outs, x, async_op=True)
    x.zero_()
    y = [out + 1 for out in outs]  # waits for the result by itself
    work.wait()
    for r in range(n):
        close(outs[r], torch.full((1000,), r + 1.0))
        close(y[r], torch.full((1000,), r + 2.0))

    x = torch.ones(4, device="tpu")
    for _ in range(100):  # a chain that is never waited for
        dist.all_reduce(x)
        x /= n
    close(x, torch.ones(4))


@on_ranks(2)
def test_works_and_futures() -> None:
    rank = dist.get_rank()
    x = torch.full((3,), rank + 1.0, device="tpu")
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda f: f.value()[0] * 2)
    close(future.wait(), torch.full((3,), 6.0))
    assert work.wait()
    x.cpu()
    while not work.is_completed():
        pass
    assert work.is_success()
    close(work.result()[0], torch.full((3,), 3.0))

    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [torch.full((i + 1,), rank + 1.0, device="tpu") for i in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(tensors):
        close(tensor, torch.full((i + 1,), 3.0))
    host = torch.ones(3)
    dist.all_reduce(host)  # the host's tensors as well
    torch.testing.assert_close(host, torch.full((3,), 2.0))


@on_ranks(4)
def test_messages() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % n, (rank - 1) % n
    mine = torch.full((1000,), float(rank), device="tpu")
    got = torch.empty(1000, device="tpu")
    # Everybody sends first: nothing may wait for the other side to receive.
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)])
    for work in works:
        work.wait()
    close(got, torch.full((1000,), float(before)))
    sent, received = dist.isend(mine * 2, after), dist.irecv(got, before)
    received.wait()
    sent.wait()
    close(got, torch.full((1000,), 2.0 * before))
    if rank == 0:
        seen = set()
        for _ in range(n - 1):
            source = dist.recv(got)
            close(got, torch.full((1000,), float(source)))
            seen.add(source)
        assert seen == set(range(1, n))
    else:
        dist.send(mine, 0)


@on_ranks(4)
def test_groups_and_objects() -> None:
    rank = dist.get_rank()
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = low if rank < 2 else high
    x = torch.full((2,), float(rank), device="tpu")
    dist.all_reduce(x, group=mine)
    close(x, torch.full((2,), 1.0 if rank < 2 else 5.0))
    objects = [None] * 2
    dist.all_gather_object(objects, {"rank": rank, "tensor": x}, group=mine)
    assert [o["rank"] for o in objects] == ([0, 1] if rank < 2 else [2, 3])
    close(objects[1]["tensor"], x.cpu())
    things = [f"from {rank}", rank] if rank in (0, 2) else [None, None]
    dist.broadcast_object_list(things, src=0 if rank < 2 else 2, group=mine)
    assert things == [f"from {rank // 2 * 2}", rank // 2 * 2]
    assert dist.get_backend(mine) == "tpu_dist"
    other = dist.new_group(backend="tpu")
    assert dist.get_backend(other) == "tpu"
    dist.barrier(other)


@on_ranks(2, 4)
def test_functional() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    group = list(range(n))
    x = torch.full((n, 2), float(rank), device="tpu")
    close(funcol.all_reduce(x, "sum", group) + 0, torch.full((n, 2), n * (n - 1) / 2))
    close(x, torch.full((n, 2), float(rank)))
    gathered = funcol.all_gather_tensor(x, 0, group) + 0
    close(gathered, torch.cat([torch.full((n, 2), float(r)) for r in range(n)]))
    close(funcol.reduce_scatter_tensor(x, "avg", 0, group) + 0, torch.full((1, 2), (n - 1) / 2))
    close(funcol.all_to_all_single(x, None, None, group) + 0, torch.arange(float(n)).repeat(2, 1).t().contiguous())
    close(funcol.broadcast(x, 1, group) + 0, torch.full((n, 2), 1.0))
    reduced = funcol.all_reduce_coalesced([x, x + 1], "max", group)
    close(reduced[1] + 0, torch.full((n, 2), float(n)))


@on_ranks(2)
def test_what_is_refused() -> None:
    x = torch.ones(4, device="tpu")
    with pytest.raises(TypeError, match="Boolean"):
        dist.all_reduce(x.bool(), ReduceOp.AVG)
    with pytest.raises(ValueError, match="integers and bool"):
        dist.all_reduce(x, ReduceOp.BAND)
    with pytest.raises(ValueError, match="on complex tensors"):
        dist.all_reduce(x.to(torch.complex64), ReduceOp.MAX)
    with pytest.raises(ValueError, match="world_size times"):
        dist.all_gather_single(torch.empty(7, device="tpu"), x)
    with pytest.raises(TypeError, match="of one dtype"):
        dist.all_gather_single(torch.empty(8, device="tpu").int(), x)
    with pytest.raises(RuntimeError, match="divide equally"):
        dist.all_to_all_single(torch.empty(3, device="tpu"), torch.empty(3, device="tpu"))
    with pytest.raises(ValueError, match="dense"):
        dist.all_reduce(torch.eye(2, device="tpu").to_sparse())
    dist.barrier()


@on_ranks(2)
def test_modes() -> None:
    rank = dist.get_rank()
    for mode in torch.tpu.EagerMode:
        torch.tpu.set_eager_mode(mode)
        try:
            x = torch.full((8,), rank + 1.0, device="tpu") * 2
            dist.all_reduce(x)
            y = x + 1
            dist.all_reduce(y)
            close(y, torch.full((8,), 14.0))
        finally:
            torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER)


@on_ranks(2)
def test_disagreement() -> None:
    """Ranks that call different collectives hear of it; nothing is mixed up, and the group goes on."""
    rank = dist.get_rank()
    kept = torch.arange(4.0, device="tpu")
    calls = [
        lambda: dist.all_reduce(torch.ones(4 + rank, device="tpu")),
        lambda: dist.all_reduce(torch.ones(4, device="tpu", dtype=(torch.float32, torch.int32)[rank])),
        lambda: dist.all_reduce(torch.ones(4, device="tpu"), (ReduceOp.SUM, ReduceOp.MAX)[rank]),
        lambda: dist.broadcast(torch.ones(4, device="tpu"), rank),
        lambda: dist.broadcast(torch.ones(4, device="tpu"), 0) if rank else dist.all_reduce(torch.ones(4).to("tpu")),
        lambda: dist.all_to_all_single(
            torch.empty(4, device="tpu"), torch.ones(4, device="tpu"), [2, 2], [1, 3] if rank else [2, 2]
        ),
        lambda: dist.send(torch.ones(4, device="tpu"), 1) if rank == 0 else dist.recv(torch.ones(3, device="tpu"), 0),
    ]
    for i, call in enumerate(calls):
        refused = i < len(calls) - 1 or rank == 1
        try:
            call()
            torch.tpu.synchronize()
        except RuntimeError as error:
            assert refused and "the ranks disagree: " in str(error), error
            assert "rank 0" in str(error) or "the sender" in str(error)
            with contextlib.suppress(RuntimeError):
                torch.tpu.synchronize()  # has it to tell where wait() told it
        else:
            assert not refused
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x)
        close(x, torch.full((4,), 2.0))
    close(kept, torch.arange(4.0))
    # A rank whose operand could not be computed says so, and the others don't wait for it.
    torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER)
    bad = torch.ones(4 + rank, device="tpu")
    try:
        dist.all_reduce(bad)  # fails on both
        dist.all_reduce(bad)  # its operand has failed
        torch.tpu.synchronize()
    except RuntimeError as error:
        assert "the ranks disagree" in str(error)
    else:
        raise AssertionError
    with contextlib.suppress(RuntimeError):
        torch.tpu.synchronize()  # may have the second to tell
