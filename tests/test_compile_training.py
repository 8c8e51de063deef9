# SPDX-License-Identifier: Apache-2.0
"""A training step that the user compiles whole: backward() inside the graph, compiled autograd, the optimizer."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.adamw import adamw

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Step = Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]


def models() -> tuple[nn.Module, nn.Module]:
    host = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))
    return host, copy.deepcopy(host).tpu()


def launches(step: Step, states: list[Any], steps: int = 4, **options: Any) -> int:
    """Trains both models; they must stay equal. Returns what the last compiled step launched."""
    host, device = models()
    states = [make(m) for make, m in zip(states, (host, device), strict=True)]
    compiled = torch.compile(step, backend="tpu", **options)
    x = torch.randn(8, 6)
    given = x.tpu()
    for _ in range(steps):
        before = torch.tpu.metrics()["launches"]
        got = compiled(device, states[1], given)
        count = torch.tpu.metrics()["launches"] - before
        torch.testing.assert_close(got.cpu(), step(host, states[0], x), atol=1e-5, rtol=1e-4)
    for a, b in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), atol=1e-5, rtol=1e-3)
    return count


def by_hand(model: nn.Module, state: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad, alpha=0.1)
            p.grad = None
    return loss.detach()


def functional(model: nn.Module, state: dict[str, list[torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    parameters = list(model.parameters())
    kinds = {"amsgrad": False, "maximize": False, "foreach": False, "capturable": x.device.type == "tpu"}
    rates = {"beta1": 0.9, "beta2": 0.99, "lr": 1e-2, "weight_decay": 0.1, "eps": 1e-8}
    with torch.no_grad():
        adamw(parameters, [p.grad for p in parameters], state["m"], state["v"], [], state["steps"], **kinds, **rates)
    for p in parameters:
        p.grad = None
    return loss.detach()


def moments(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    parameters = list(model.parameters())
    zeros = {kind: [torch.zeros_like(p) for p in parameters] for kind in "mv"}
    return {**zeros, "steps": [torch.zeros((), device=p.device) for p in parameters]}


def usual(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    loss = loss.detach()  # else the graph that the optimizer breaks off would have to keep it for a second backward
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("step, state", [(by_hand, lambda m: None), (functional, moments)])
def test_backward_in_the_graph_is_one_program(step: Step, state: Callable[[nn.Module], Any]) -> None:
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        assert launches(step, [state, state], fullgraph=True) == 1


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adagrad"])
def test_with_an_optimizer_it_is_two(kind: str) -> None:
    def made(model: nn.Module) -> torch.optim.Optimizer:
        return getattr(torch.optim, kind)(model.parameters(), lr=1e-2)

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        assert launches(usual, [made, made]) == 2


def test_without_the_setting_backward_breaks_the_graph() -> None:
    def made(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-2)

    assert launches(usual, [made, made]) > 2
    assert any("backward" in reason for reason in torch._dynamo.utils.counters["graph_break"])


def test_compiled_autograd() -> None:
    """The backward with the hooks of the user in it is captured anew and compiled by the backend."""
    host, device = models()
    for model in (host, device):
        model[0].weight.register_hook(lambda g: g * 2)
    x = torch.randn(8, 6)
    given = x.tpu()
    compiled = torch.compile(device, backend="tpu")
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        host.zero_grad()
        device.zero_grad()
        host(x).square().mean().backward()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="tpu")):
            compiled(given).square().mean().backward()
        for a, b in zip(device.parameters(), host.parameters(), strict=True):
            torch.testing.assert_close(a.grad.cpu(), b.grad, atol=1e-5, rtol=1e-4)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1


def test_compiled_autograd_by_its_setting() -> None:
    def step(model: nn.Module, state: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        return loss.detach()

    with torch._dynamo.config.patch(compiled_autograd=True):
        launches(step, [lambda m: None, lambda m: None])
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] > 0
