# SPDX-License-Identifier: Apache-2.0
"""Training over several processes is equal to training in one, on the CPU."""

import copy
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import on_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, WIDTH = 3, 8, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def network(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[Block() for _ in range(blocks)], nn.Linear(WIDTH, 4))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def shard(t: torch.Tensor) -> torch.Tensor:
    return t.chunk(dist.get_world_size())[dist.get_rank()]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, take: Callable[[torch.Tensor], Any]) -> None:
    for step in range(STEPS):
        x, y = (take(t) for t in batch(step))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def reference(model: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """The weights that one process gets on the CPU."""
    model = model or network()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: t)
    return model.state_dict()


def same(got: dict[str, Any], wanted: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        torch.testing.assert_close(whole.cpu(), wanted[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)


# What the sum in another order changes, after Adam's division by small numbers.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"device_ids": [0]},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
@on_ranks(2, 4)
def test_ddp(options: dict[str, Any]) -> None:
    model = DDP(network().to("tpu"), **options)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same(model.module.state_dict(), reference(), **CLOSE)


@on_ranks(2)
def test_ddp_starts_from_rank_0_and_syncs_buffers() -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    torch.manual_seed(0)
    wanted = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    ddp = DDP(model.to("tpu"))
    same(ddp.module.state_dict(), wanted.state_dict())
    ddp(shard(batch(0)[0]).to("tpu"))
    ddp(shard(batch(1)[0]).to("tpu"))  # broadcasts rank 0's buffers first
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, ddp.module[1].num_batches_tracked.item())
    assert gathered == [2, 2]


class Branches(nn.Module):
    """Some parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.never, self.by_rank = (nn.Linear(WIDTH, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, use: bool = False) -> torch.Tensor:
        return self.always(x) + (self.by_rank(x) if use else 0)


@on_ranks(2)
def test_ddp_unused_parameters_and_no_sync() -> None:
    torch.manual_seed(1)
    plain = Branches()
    model = DDP(copy.deepcopy(plain).to("tpu"), find_unused_parameters=True)
    halves = batch(0)[0].chunk(2)
    # Rank 1 alone uses a branch.
    model(halves[dist.get_rank()].to("tpu"), dist.get_rank() == 1).sum().backward()
    (sum(plain(half, i == 1).sum() for i, half in enumerate(halves)) / 2).backward()
    grads = {n: p.grad for n, p in model.module.named_parameters()}
    assert grads["never.weight"] is None
    for name in ("always.weight", "by_rank.weight", "by_rank.bias"):
        torch.testing.assert_close(grads[name].cpu(), plain.get_parameter(name).grad)

    model = DDP(network().to("tpu"))
    single = network()
    for step in range(2):
        x = batch(step)[0]
        single(x).square().mean().backward()
        if step == 0:
            with model.no_sync():
                model(shard(x).to("tpu")).square().mean().backward()
        else:
            model(shard(x).to("tpu")).square().mean().backward()
    same(
        {n: p.grad for n, p in model.module.named_parameters()},
        {n: p.grad for n, p in single.named_parameters()},
        rtol=1e-4,
        atol=1e-5,
    )


@on_ranks(2)
def test_ddp_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wanted = {}
    single = network()
    single(batch(0)[0]).square().mean().backward()
    wanted = {n: p.grad for n, p in single.named_parameters()}
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=8, start_powerSGD_iter=10)
    hooks = [
        (None, default_hooks.allreduce_hook, {}),
        (None, default_hooks.fp16_compress_hook, {"rtol": 1e-2, "atol": 1e-3}),
        (state, powerSGD_hook.powerSGD_hook, {}),
    ]
    for given, hook, tolerance in hooks:
        model = DDP(network().to("tpu"))
        model.register_comm_hook(given, hook)
        model(shard(batch(0)[0]).to("tpu")).square().mean().backward()
        tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
        same({n: p.grad for n, p in model.module.named_parameters()}, wanted, **tolerance)


@on_ranks(2)
def test_ddp_reduces_while_the_backward_goes_on() -> None:
    """The first bucket's collective comes to its end before the last gradient is computed."""
    model = DDP(nn.Sequential(*[nn.Linear(600, 600) for _ in range(3)]).to("tpu"), bucket_cap_mb=1)
    works: list[Any] = []

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        works.append(dist.all_reduce(bucket.buffer().div_(2), async_op=True))
        return works[-1].get_future().then(lambda f: f.value()[0])

    def at_the_last_gradient(_: torch.Tensor) -> None:
        if not again:  # the buckets are made anew afterwards, in the order of the gradients
            return
        until = time.monotonic() + 20
        while not (works and works[0].is_completed()) and time.monotonic() < until:
            time.sleep(0.001)
        assert works and works[0].is_completed()
        seen.append(len(works))

    model.register_comm_hook(None, hook)
    seen: list[int] = []
    model.module[0].weight.register_hook(at_the_last_gradient)
    again = False
    for _ in range(3):
        works.clear()
        model(torch.ones(4, 600, device="tpu")).square().mean().backward()
        again = True
    assert len(seen) == 2 and max(seen) < len(works)


def sharded(model: nn.Sequential, **options: Any) -> nn.Sequential:
    for block in model[:-1]:
        fully_shard(block, **options)
    return fully_shard(model, **options)


@pytest.mark.parametrize("reshard", [True, False])
@on_ranks(2, 4)
def test_fsdp2(reshard: bool) -> None:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = sharded(network().to("tpu"), mesh=mesh, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, lambda t: shard(t).to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@on_ranks(2)
def test_fsdp2_from_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[Block() for _ in range(2)], nn.Linear(WIDTH, 4))
    sharded(model)
    model.to_empty(device="tpu")
    wanted = network().state_dict()
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(distribute_tensor(wanted[name].to("tpu"), parameter.device_mesh, parameter.placements))
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@on_ranks(2)
def test_fsdp2_mixed_precision_and_clipping() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(network().to("tpu"), mp_policy=policy)
    x = batch(0)[0]
    model(shard(x).to("tpu")).float().square().mean().backward()
    single = network()
    single(x).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    wanted = nn.utils.clip_grad_norm_(single.parameters(), 1e9)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    torch.testing.assert_close(norm.full_tensor().cpu(), wanted, rtol=2e-2, atol=1e-2)
    same(
        {n: p.grad for n, p in model.named_parameters()},
        {n: p.grad for n, p in single.named_parameters()},
        rtol=5e-2,
        atol=1e-2,
    )


@on_ranks(2)
def test_fsdp2_cpu_offload() -> None:
    model = sharded(network(), mesh=init_device_mesh("tpu", (2,)), offload_policy=CPUOffloadPolicy())
    assert all(p.device.type == "cpu" for p in model.parameters())
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same({n: p.full_tensor() for n, p in model.named_parameters()}, reference(), **CLOSE)


@on_ranks(4)
def test_hybrid_sharding() -> None:
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(network().to("tpu"), mesh=mesh)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda t: shard(t).to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@on_ranks(2, 4)
def test_dtensor() -> None:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    torch.manual_seed(3)
    a, b = torch.randn(8, 12), torch.randn(12, 8)
    for pa in (Shard(0), Shard(1), Replicate()):
        for pb in (Shard(0), Shard(1), Replicate()):
            x, y = distribute_tensor(a.to("tpu"), mesh, [pa]), distribute_tensor(b.to("tpu"), mesh, [pb])
            out = (x @ y).relu().sum(0)
            torch.testing.assert_close(out.full_tensor().cpu(), (a @ b).relu().sum(0))
    x = distribute_tensor(a.to("tpu"), mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0)):
        x = x.redistribute(mesh, [placement])
        torch.testing.assert_close(x.full_tensor().cpu(), a)
    partial = DTensor.from_local(torch.ones(4, device="tpu"), mesh, [Partial()])
    torch.testing.assert_close(partial.full_tensor().cpu(), torch.full((4,), float(dist.get_world_size())))
    uneven = distribute_tensor(torch.arange(7.0).to("tpu"), mesh, [Shard(0)])
    torch.testing.assert_close((uneven * 2).full_tensor().cpu(), torch.arange(7.0) * 2)


def tensor_parallel(model: nn.Sequential, mesh: Any, sequence: bool) -> nn.Sequential:
    for block in model[:-1]:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(sequence_dim=0),
                "up": ColwiseParallel(input_layouts=Shard(0)),
                "down": RowwiseParallel(output_layouts=Shard(0)),
            }
        parallelize_module(block, mesh, plan)
    if sequence:
        parallelize_module(
            model,
            mesh,
            {
                "0": PrepareModuleInput(
                    input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=True
                ),
                str(len(model) - 1): ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
            },
        )
    return model


@pytest.mark.parametrize("sequence", [False, True])
@on_ranks(2, 4)
def test_tensor_parallel(sequence: bool) -> None:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = tensor_parallel(network().to("tpu"), mesh, sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    train(model, optimizer, lambda t: t.to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@on_ranks(2)
def test_loss_parallel() -> None:
    mesh = init_device_mesh("tpu", (2,))
    model = network()
    x, y = batch(0)
    wanted = nn.functional.cross_entropy(model(x), y)
    wanted.backward()
    ours = network().to("tpu")
    ours[-1] = parallelize_module(ours[-1], mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    with loss_parallel():
        loss = nn.functional.cross_entropy(ours(x.to("tpu")), y.to("tpu"))
        loss.backward()
    torch.testing.assert_close(loss.full_tensor().cpu(), wanted)
    torch.testing.assert_close(ours[-1].weight.grad.full_tensor().cpu(), model[-1].weight.grad)


@on_ranks(4)
def test_fsdp2_over_tensor_parallel() -> None:
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("data", "model"))
    model = tensor_parallel(network().to("tpu"), mesh["model"], False)
    model = sharded(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    row = mesh["data"].get_local_rank()
    train(model, optimizer, lambda t: t.chunk(2)[row].to("tpu"))
    same(model.state_dict(), reference(), **CLOSE)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
@on_ranks(2, 4)
def test_pipeline(schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    n, rank = dist.get_world_size(), dist.get_rank()
    loops = 2 if schedule.startswith("Interleaved") else 1
    torch.manual_seed(1)
    layers = [Block() for _ in range(n * loops)]
    parts = [copy.deepcopy(layers[rank + n * i]).to("tpu") for i in range(loops)]
    stages = [PipelineStage(part, rank + n * i, n * loops, torch.device("tpu:0")) for i, part in enumerate(parts)]
    maker = get_schedule_class(schedule)
    run = maker(stages if loops > 1 else stages[0], n_microbatches=4, loss_fn=nn.functional.mse_loss)
    x, target = batch(0)[0], batch(1)[0]
    losses: list[torch.Tensor] = []
    if rank == n - 1:
        out = run.step(*([x.to("tpu")] if n == 1 else []), target=target.to("tpu"), losses=losses)
    else:
        out = run.step(*([x.to("tpu")] if rank == 0 else []))
    whole = nn.Sequential(*layers)
    result = whole(x)
    sum(nn.functional.mse_loss(r, t) / 4 for r, t in zip(result.chunk(4), target.chunk(4), strict=True)).backward()
    if rank == n - 1:
        torch.testing.assert_close(out.cpu(), result)
    for i, part in enumerate(parts):
        same(
            {k: p.grad for k, p in part.named_parameters()},
            {k: p.grad for k, p in layers[rank + n * i].named_parameters()},
            rtol=1e-4,
            atol=1e-5,
        )


@on_ranks(2, 4)
def test_context_parallel() -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    torch.manual_seed(3)
    inputs = [torch.randn(2, 2, 16, 8) for _ in range(3)]
    weights = torch.randn(2, 2, 16, 8)
    leaves = [t.clone().requires_grad_() for t in inputs]
    wanted = nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    (wanted * weights).sum().backward()
    parts = [t.to("tpu") for t in inputs]
    w = weights.to("tpu")
    with context_parallel(mesh, buffers=[*parts, w], buffer_seq_dims=[2] * 4, no_restore_buffers={*parts, w}):
        for part in parts:
            part.requires_grad_()
        out = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        (out * w).sum().backward()
        whole = context_parallel_unshard(mesh, [out, *(p.grad for p in parts)], [2] * 4)
    for got, value in zip(whole, [wanted, *(t.grad for t in leaves)], strict=True):
        torch.testing.assert_close(got.cpu(), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@on_ranks(2)
def test_attention_of_dtensors(bias: bool) -> None:
    mesh = init_device_mesh("tpu", (2,))
    torch.manual_seed(3)
    inputs = [torch.randn(2, 2, 8, 8) for _ in range(3)]
    mask = torch.randn(8, 8) if bias else None
    leaves = [t.clone().requires_grad_() for t in inputs]
    wanted = nn.functional.scaled_dot_product_attention(*leaves, mask, is_causal=not bias)
    wanted.square().sum().backward()
    for dim in (0, 1):  # by the batch, by the heads
        ours = [distribute_tensor(t.to("tpu"), mesh, [Shard(dim)]).requires_grad_() for t in inputs]
        given = None if mask is None else distribute_tensor(mask.to("tpu"), mesh, [Replicate()])
        out = nn.functional.scaled_dot_product_attention(*ours, given, is_causal=not bias)
        assert out.placements == (Shard(dim),)
        out.square().sum().backward()
        torch.testing.assert_close(out.full_tensor().cpu(), wanted)
        for got, leaf in zip(ours, leaves, strict=True):
            torch.testing.assert_close(got.grad.full_tensor().cpu(), leaf.grad, rtol=1e-4, atol=1e-5)


def trained(ranks: list[int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = torch.distributed.device_mesh.DeviceMesh("tpu", ranks)
    model = sharded(network().to("tpu"), mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@on_ranks(4)
def test_checkpoint_saved_on_4_and_loaded_on_2() -> None:
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model, optimizer = trained([0, 1, 2, 3])
    train(model, optimizer, lambda t: shard(t).to("tpu"))
    saved = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(saved, checkpoint_id=folder[0])
    whole = {k: v.full_tensor().cpu() for k, v in saved["model"].items()}
    moment = {k: v.full_tensor().cpu() for k, v in ((n, s["exp_avg"]) for n, s in saved["optimizer"]["state"].items())}
    pair = dist.new_group([0, 1])
    half = torch.distributed.device_mesh.DeviceMesh("tpu", [0, 1])
    if dist.get_rank() < 2:
        other = sharded(network().to("tpu"), mesh=half)
        fresh = torch.optim.AdamW(other.parameters(), lr=1e-2)
        state = {"model": get_model_state_dict(other), "optimizer": get_optimizer_state_dict(other, fresh)}
        dcp.load(state, checkpoint_id=folder[0], process_group=pair)
        same(state["model"], whole, rtol=0, atol=0)
        same({n: s["exp_avg"] for n, s in state["optimizer"]["state"].items()}, moment, rtol=0, atol=0)
    dist.barrier()
