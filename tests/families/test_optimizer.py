# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of torch.optim: three steps against the CPU, and programs that stop growing."""

import pytest
import torch

import torch_tpu  # noqa: F401

OPTIMIZERS = {
    "SGD": dict(lr=0.1),
    "SGD-momentum": dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": dict(lr=0.1, weight_decay=0.01),
    "Adam-amsgrad": dict(lr=0.1, amsgrad=True, maximize=True),
    "AdamW": dict(lr=0.1),
    "Adagrad": dict(lr=0.1, lr_decay=0.1, weight_decay=0.01),
    "Adadelta": dict(lr=1.0),
    "Adamax": dict(lr=0.1),
    "NAdam": dict(lr=0.1),
    "RAdam": dict(lr=0.1),
    "RMSprop": dict(lr=0.1, momentum=0.5, centered=True),
    "Rprop": dict(lr=0.1),
    "ASGD": dict(lr=0.1),
    "Adafactor": dict(lr=0.1),
    "Muon": dict(lr=0.1),
    "LBFGS": dict(lr=0.1, max_iter=3),
}
FUSED = ["SGD", "SGD-momentum", "Adam", "Adam-amsgrad", "AdamW", "Adagrad"]


def make(device, dtype=torch.float32, only_matrices=False):
    g = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5, 2)] if only_matrices else [(4, 3), (3,), (), (2, 2, 2)]
    return [torch.nn.Parameter(torch.randn(s, generator=g, dtype=dtype).to(device)) for s in shapes]


def train(name, device, steps=3, count=None, dtype=torch.float32, **more):
    cls = getattr(torch.optim, name.split("-")[0])
    params = make(device, dtype, name == "Muon")
    opt = cls(params, **OPTIMIZERS[name], **more)
    g = torch.Generator().manual_seed(1)

    def closure():
        opt.zero_grad()
        loss = sum(((p * p).sum() + p.sum()) for p in params)
        loss.backward()
        return loss

    for _ in range(steps):
        if name == "LBFGS":
            opt.step(closure)
        else:
            for p in params:
                p.grad = torch.randn(p.shape, generator=g, dtype=dtype).to(device)
            opt.step()
        if count is not None:
            count.append(torch.tpu.metrics()["plans"])
    return [p.detach().cpu() for p in params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default(name):
    count = []
    got = train(name, "tpu", 5, count)
    torch.testing.assert_close(got, train(name, "cpu", 5), rtol=1e-4, atol=1e-5)
    if name != "LBFGS":
        assert count[-1] == count[1], f"new plans after the second step: {count}"


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused(name, dtype):
    count = []
    got = train(name, "tpu", 5, count, dtype=dtype, fused=True)
    torch.testing.assert_close(got, train(name, "cpu", 5, dtype=dtype), rtol=2e-5, atol=1e-6)
    assert count[-1] == count[1]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD-momentum", "Adagrad"])
def test_tensor_lr(name):
    kept = OPTIMIZERS[name]
    want = train(name, "cpu")
    OPTIMIZERS[name] = {**kept, "lr": torch.tensor(kept["lr"])}
    try:
        got = train(name, "tpu", fused=True)
    finally:
        OPTIMIZERS[name] = kept
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6)


def test_schedule_does_not_recompile():
    params = make("tpu")
    opt = torch.optim.AdamW(params, lr=0.1)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10)
    counts = []
    for _ in range(6):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
        sched.step()
        counts.append(torch.tpu.metrics()["plans"])
    assert counts[-1] == counts[1]


def test_grad_scaler_skips_overflow():
    params = make("tpu")
    before = [p.detach().cpu() for p in params]
    opt = torch.optim.Adam(params, lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0)
    for p in params:
        p.grad = torch.full_like(p, float("inf"))
    scaler.scale(torch.ones((), device="tpu"))  # makes the scale tensor
    scaler.step(opt)
    scaler.update()
    for p, b in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach().cpu(), b)
    assert scaler.get_scale() == 2.0


def test_update_scale_grows():
    out = {}
    for d in ("cpu", "tpu"):
        scale, tracker = torch.tensor([2.0], device=d), torch.tensor([1], dtype=torch.int32, device=d)
        torch._amp_update_scale_(scale, tracker, torch.zeros(1, device=d), 2.0, 0.5, 2)
        out[d] = (scale.cpu(), tracker.cpu())
    assert out["cpu"] == out["tpu"]
