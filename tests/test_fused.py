# SPDX-License-Identifier: Apache-2.0
"""Fused eager (DEFER_AND_FUSE): the semantics of eager, fewer programs."""

import conformance
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from subprocess_run import run
from torch import nn

from torch_tpu import _C

MODES = ["DEFER_NEVER", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_AND_FUSE"]


@pytest.fixture
def fused():
    with conformance.eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        yield


def launches() -> int:
    return _C.counters()["launches"]


# ---- Random programs ---------------------------------------------------------------------------

# Each takes the live tensors (each [4, 6], a view or not) and two numbers, and changes the list or a tensor in it.
OPERATIONS = {
    "add": lambda ts, i, k: ts.append(ts[i] + ts[k]),
    "scale": lambda ts, i, k: ts.append(ts[i] * (0.25 * (k % 5) - 0.5)),
    "product": lambda ts, i, k: ts.append((ts[i] @ ts[k].mT @ ts[i]).tanh()),
    "softmax": lambda ts, i, k: ts.append(ts[i].softmax(k % 2)),
    "alias": lambda ts, i, k: ts.append(ts[i].view(6, 4).view(4, 6)) if ts[i].is_contiguous() else None,
    "flip": lambda ts, i, k: ts.append(ts[i].flip(k % 2)),
    "clone": lambda ts, i, k: ts.append(ts[i].t().contiguous().t()),
    "add_": lambda ts, i, k: ts[i].add_(1.0 / (1 + k)),
    "mul_": lambda ts, i, k: ts[i].mul_(ts[k].detach().clone().clamp(-1, 1)),
    "row_": lambda ts, i, k: ts[i][k % 4].fill_(k),
    "column_": lambda ts, i, k: ts[i][:, k % 6].copy_(ts[i][:, (k + 1) % 6].clone()),
    "block_": lambda ts, i, k: ts[i][k % 3 : k % 3 + 2, ::2].neg_(),
    "copy_": lambda ts, i, k: ts[i].copy_(ts[k].clone()),
    "index_": lambda ts, i, k: ts[i].index_copy_(0, torch.tensor([k % 4], device=ts[i].device), ts[k][:1].clone()),
    "read": lambda ts, i, k: ts[i].add_(0.5 if ts[i].sum().item() > 0 else -0.5),
    "forget": lambda ts, i, k: ts.pop(i) if len(ts) > 1 else None,
}


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 7), st.integers(0, 7)), max_size=24))
def test_random_programs(steps):
    def ran(device):
        ts = [torch.linspace(-1, 1, 24).reshape(4, 6).to(device), torch.ones(4, 6, device=device)]
        for name, i, k in steps:
            OPERATIONS[name](ts, i % len(ts), k % len(ts))
            del ts[8:]
        return [t.cpu() for t in ts]

    want = ran("cpu")
    for mode in MODES:
        with conformance.eager_mode(torch.tpu.EagerMode[mode]):
            torch.testing.assert_close(ran("tpu"), want, rtol=1e-4, atol=1e-5, msg=lambda m, mode=mode: f"{mode}: {m}")


# ---- Cuts and programs -------------------------------------------------------------------------


def test_one_program_for_many_operators(fused):
    x = torch.ones(8, 8, device="tpu")
    x.sum().item()
    before = launches()
    y = x
    for k in range(20):
        y = (y * 0.5 + k).tanh()
    dead = y.exp()
    del dead
    assert launches() == before
    total = y.sum().item()
    assert launches() == before + 1
    z = torch.ones(8, 8)
    for k in range(20):
        z = (z * 0.5 + k).tanh()
    assert total == pytest.approx(z.sum().item())


def test_what_waits_for_work_cuts(fused):
    x = torch.ones(4, device="tpu")
    for cut in (
        torch.tpu.synchronize,
        lambda: torch.tpu.current_stream().synchronize(),
        lambda: torch.tpu.Event().record(),
        lambda: torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER),
    ):
        torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)
        x = x + 1
        before = launches()
        cut()
        assert launches() == before + 1
    assert x.tolist() == [5.0] * 4


@pytest.mark.parametrize("reads", [True, False], ids=["loss read", "nothing read"])
def test_a_training_loop_settles(fused, reads):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    x, y = torch.randn(32, 16, device="tpu"), torch.randn(32, 4, device="tpu")
    compiled, first, loss = [], None, None
    for _ in range(40):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if reads:
            loss.item()
        compiled.append(_C.counters()["programs_compiled"] + _C.counters()["programs_from_disk"])
        first = loss.detach() if first is None else first
    assert compiled[-1] == compiled[20]
    assert loss.item() < first.item()


def test_memory_of_what_is_replaced_is_reused(fused):
    x = torch.zeros(1 << 20, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    start = torch.tpu.memory_allocated()
    for _ in range(10):
        x.add_(1)
        torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == start
    kept = x.clone()
    x.add_(1)
    assert x[0].item() == 11 and kept[0].item() == 10


def test_errors_at_the_call(fused):
    a, b = torch.ones(2, 3, device="tpu"), torch.ones(4, 5, device="tpu")
    with pytest.raises(RuntimeError):
        a @ b
    with pytest.raises(IndexError):
        a[torch.tensor([7], device="tpu")]
    assert (a + 1).sum().item() == 12


def test_a_program_that_fails_names_its_operators():
    out = run(
        """
        import torch
        torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)
        x = torch.ones(1 << 20, device="tpu")
        y = x[:, None].expand(-1, 64).exp()
        z = y + 1
        for use in (lambda: z.sum().item(), lambda: z.cpu(), lambda: (z + 1).sum().item()):
            try:
                use()
                print("no error")
            except torch.OutOfMemoryError as error:
                print("aten::exp at <string>:5" in str(error))
        print(x.sum().item())
        """,
        TORCH_TPU_MEMORY_LIMIT_MB="64",
    )
    assert out.split() == ["True", "True", "True", str(float(1 << 20))]


def test_threads(fused):
    from concurrent.futures import ThreadPoolExecutor

    def work(k):
        x = torch.full((16, 16), float(k), device="tpu")
        for _ in range(50):
            x = (x * 0.5 + 1).relu()
        return x.sum().item()

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(work, range(12)))
    want = [float((k - 2) * 0.5**50 + 2) * 256 for k in range(12)]
    assert got == pytest.approx(want)
