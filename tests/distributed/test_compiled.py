# SPDX-License-Identifier: Apache-2.0
"""torch.compile of code with collectives: they run between two programs."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import on_ranks
from test_parallel import CLOSE, batch, network, reference, same, shard, sharded, tensor_parallel, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP


@on_ranks(2)
def test_functional() -> None:
    torch._dynamo.reset()
    rank, group = dist.get_rank(), dist.group.WORLD

    def f(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_reduce(x * 2, "sum", group) + 1
        z = funcol.all_gather_tensor(y.sin(), 0, group)
        return funcol.reduce_scatter_tensor(z * 3, "sum", 0, group) - y

    x = torch.full((4,), rank + 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled = torch.compile(f, backend="tpu")
        for _ in range(2):
            got = compiled(x.to("tpu"))
    y = torch.full((4,), 7.0)
    torch.testing.assert_close(got.cpu(), y.sin() * 6 - y)


@on_ranks(2)
def test_all_reduce_in_place() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="tpu")
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    got = f(torch.full((4,), dist.get_rank() + 1.0, device="tpu"))
    torch.testing.assert_close(got.cpu(), torch.full((4,), 7.0))


@on_ranks(2)
def test_ddp() -> None:
    torch._dynamo.reset()
    model = DDP(torch.compile(network().to("tpu"), backend="tpu", dynamic=False))
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same({n.replace("_orig_mod.", ""): v for n, v in model.module.state_dict().items()}, reference(), **CLOSE)


@on_ranks(2)
def test_fsdp2() -> None:
    torch._dynamo.reset()
    model = network().to("tpu")
    for block in model[:-1]:
        block.compile(backend="tpu", dynamic=False)
    sharded(model)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@on_ranks(2)
def test_tensor_parallel() -> None:
    torch._dynamo.reset()
    model = tensor_parallel(network().to("tpu"), init_device_mesh("tpu", (2,)), False)
    compiled = torch.compile(model, backend="tpu", dynamic=False)
    x = batch(0)[0]
    single = network()
    wanted = single(x)
    wanted.square().mean().backward()
    got = compiled(x.to("tpu"))
    got.square().mean().backward()
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)
    grads = {n: p.grad for n, p in model.named_parameters()}
    same(grads, {n: p.grad for n, p in single.named_parameters()}, rtol=1e-4, atol=1e-5)
    assert isinstance(model, nn.Sequential)
