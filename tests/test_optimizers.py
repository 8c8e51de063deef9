# SPDX-License-Identifier: Apache-2.0
"""Every entry of PyTorch's optim_db: steps on tpu against the CPU's plain loop, and no program compiled after the
second step (LBFGS apart, whose line search takes its own way each time). See expected_failures.txt."""

from typing import Any

import conformance
import program_counts
import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

pytestmark = [pytest.mark.timeout(60, method="thread"), pytest.mark.filterwarnings("ignore")]

FLAGS: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}


def implementations(info: OptimizerInfo) -> list[str]:
    plain = ["plain"] if "foreach" in info.supported_impls else []
    capturable = ["capturable"] if info.has_capturable_arg else []
    return ["default", *plain, *(name for name in info.supported_impls if name in FLAGS), *capturable]


CASES = [
    pytest.param(info, name, id=f"{info.optim_cls.__name__}-{name}")
    for info in optim_db
    for name in implementations(info)
]


def train(
    info: OptimizerInfo, kwargs: dict[str, Any], device: str, steps: int, compiled: bool = False
) -> tuple[list[torch.Tensor], list[int]]:
    """A linear model on fixed data; the parameters, and the programs there were after each step."""
    conformance.seed(0)
    data, labels = torch.randn(8, 4).to(device), torch.randn(8, 3).to(device)
    shapes = [(4, 5), (5, 3)] if info.optim_cls.__name__ == "Muon" else [(4, 5), (5,), (5, 3), (3,)]
    params = [torch.nn.Parameter(torch.randn(shape).to(device)) for shape in shapes]
    optimizer = info.optim_cls(params, **kwargs)
    programs = []

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        x = data
        for p in params:
            x = x @ p if p.dim() == 2 else torch.tanh(x + p)
        value = (x - labels).pow(2).mean()
        value.backward()
        if info.only_supports_sparse_grads:
            for p in params:
                p.grad = p.grad.to_sparse()
        return value

    def step() -> None:
        if info.step_requires_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()

    if compiled:
        step = torch.compile(step, backend="tpu")
    for _ in range(steps):
        step()
        programs.append(program_counts.needed())
    return params, programs


def check_optimizer(info: OptimizerInfo, implementation: str) -> None:
    for made in info.optim_inputs_func(device="cpu"):
        kwargs = {k: v for k, v in made.kwargs.items() if k not in ("foreach", "fused", "differentiable", "capturable")}
        if implementation == "fused" and any(isinstance(v, torch.Tensor) for v in kwargs.values()):
            kwargs = {k: v for k, v in kwargs.items() if not isinstance(v, torch.Tensor)}
        if info.step_requires_closure:  # its 20 iterations a step go astray on any rounding error, the CPU's too
            kwargs = {"max_iter": 2, "lr": 0.1, **kwargs}
        want, _ = train(info, kwargs, "cpu", 3)
        got, programs = train(info, {**conformance.on_tpu(kwargs), **FLAGS[implementation]}, "tpu", 3)
        conformance.close(got, want, f"{made.desc}, {kwargs}", rtol=1e-5, atol=1e-5)
        grown = programs[2] - programs[1]
        assert not grown or info.step_requires_closure, f"{made.desc}: {grown} programs compiled in the third step"


@pytest.mark.parametrize("info, implementation", CASES)
def test_optimizer(info: OptimizerInfo, implementation: str) -> None:
    check_optimizer(info, implementation)


@pytest.mark.parametrize("info", optim_db, ids=lambda info: info.optim_cls.__name__)
def test_compiled_optimizer(info: OptimizerInfo) -> None:
    torch.compiler.reset()
    made = info.optim_inputs_func(device="cpu")[0]
    kwargs = {"max_iter": 2, "lr": 0.1} if info.step_requires_closure else dict(made.kwargs)
    want, _ = train(info, kwargs, "cpu", 3)
    got, _ = train(info, conformance.on_tpu(kwargs), "tpu", 3, compiled=True)
    conformance.close(got, want, f"{made.desc}, {kwargs}", rtol=1e-5, atol=1e-5)
