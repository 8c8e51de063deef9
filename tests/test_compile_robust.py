# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a compiled function, and what must not: errors, interrupts, subclasses, sizes nobody knows."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import subprocess_run
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5, check_device=False)


def usable() -> None:
    x = torch.arange(4.0)
    close(x.tpu() + 1, x + 1)
    close(torch.compile(lambda x: x.sin() + 1, backend="tpu")(x.tpu()), x.sin() + 1)


# ---- Errors ------------------------------------------------------------------------------------------------------


@torch.library.custom_op("tpu_robust_test::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        raise ValueError("more than a hundred")
    return x * 2


@fails.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_that_raises_names_the_line() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return fails(y + x) + 1

    compiled = torch.compile(run, backend="tpu")
    x = torch.ones(4)
    with pytest.warns(UserWarning, match=r"tpu_robust_test.fails.*at .*test_compile_robust.py:\d+"):
        close(compiled(x.tpu()), run(x))
    with pytest.raises(ValueError, match=r"(?s)more than a hundred.*test_compile_robust.py.*return fails\(y \+ x\)"):
        compiled((x * 100).tpu())
    close(compiled(x.tpu()), run(x))


def unsupported(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(torch.diag(x)).real


def test_an_operator_without_a_lowering_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CPU_FALLBACK", "error")
    with pytest.raises(NotImplementedError, match=r"linalg.* at .*test_compile_robust.py:\d+ can't be part"):
        torch.compile(unsupported, backend="tpu")(torch.ones(3).tpu())
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(torch.compile(unsupported, backend="tpu")(torch.ones(3).tpu()), torch.ones(3))


@pytest.mark.parametrize(
    "function, kind, text",
    [
        (lambda x: x @ torch.ones(7, 7, device=x.device), RuntimeError, r"(?s)7.*test_compile_robust.py"),
        (lambda x: x[torch.tensor([9], device=x.device)], IndexError, "index 9 is out of bounds"),
        (lambda x: x.view(5), RuntimeError, r"(?s)view.*test_compile_robust.py"),
    ],
)
def test_bad_calls_leave_the_device_usable(function: Callable[..., Any], kind: type, text: str) -> None:
    compiled = torch.compile(function, backend="tpu")
    for _ in range(2):
        with pytest.raises(kind, match=text):
            compiled(torch.ones(4).tpu())
        usable()


def test_a_failed_compile_leaves_everything_usable() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.t()).cumsum(0)

    x = torch.randn(5, 3)
    compiled = torch.compile(run, backend="tpu", options={"xla_no_such_option": 1})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="xla_no_such_option"):
            compiled(x.tpu())
        usable()
    close(run(x.tpu()), run(x))
    torch.compiler.reset()
    close(torch.compile(run, backend="tpu")(x.tpu()), run(x))


INTERRUPTED = """
import os, signal, threading, time
import torch

def heavy(k):
    def function(x, w):
        for i in range(40):
            x = torch.softmax(x @ w + k * i, -1).sort(-1)[0]
        return x
    return function

def plans():
    return torch.tpu.metrics()["plans"]

def signal_when(began, then):
    "Sends SIGINT `then` seconds after a program for a new graph was begun; at once where `began` is False."
    before = plans()
    while began and plans() == before:
        time.sleep(0.001)
    time.sleep(then)
    os.kill(os.getpid(), signal.SIGINT)

x, w = torch.randn(8, 8), torch.randn(8, 8)
a, b = x.tpu(), w.tpu()
torch.compile(lambda x: x + 1, backend="tpu")(a)
interrupted = 0
for k, (began, then) in enumerate([(False, 0.05), (False, 0.3), (True, 0.0), (True, 0.5)]):
    torch.compiler.reset()
    function = heavy(k + 0.5)
    compiled = torch.compile(function, backend="tpu")
    try:
        threading.Thread(target=signal_when, args=(began, then)).start()
        compiled(a, b)
        time.sleep(5)  # the program was there already
    except KeyboardInterrupt:
        interrupted += 1
    assert torch.allclose((a + 1).cpu(), x + 1)
    assert torch.allclose(compiled(a, b).cpu(), function(x, w), atol=1e-5)
print(interrupted)
"""


def test_interrupted_compiles_leave_no_broken_cache(tmp_path: Path) -> None:
    """Real signals while Dynamo traces, while the graph is traced and while XLA compiles; the caches serve a second
    process with the right values."""
    folder = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    assert int(subprocess_run.run(INTERRUPTED, **folder)) == 4
    without = INTERRUPTED.replace("threading.Thread(target=signal_when, args=(began, then)).start()", "pass")
    assert int(subprocess_run.run(without.replace("time.sleep(5)", "pass"), **folder)) == 0


# ---- Subclasses --------------------------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    pass


class Scaled(nn.Module):
    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


@pytest.mark.filterwarnings("ignore:.*_stable_hash_for_caching")
def test_parameters_that_wrap_two_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    w, x = torch.randn(4, 4), torch.randn(3, 4)
    for _ in range(2):  # the second time from the cache
        torch.compiler.reset()
        model = Scaled(TwoTensor(w.tpu(), 2 * w.tpu()))
        got = torch.compile(model, backend="tpu")(x.tpu())
        assert isinstance(got, TwoTensor)
        got.sum().backward()
        for half, scale in ((lambda t: t.a, 1), (lambda t: t.b, 2)):
            plain = Scaled(scale * w)
            want = plain(x)
            want.sum().backward()
            close(half(got), want)
            close(half(model.weight.grad), plain.weight.grad)


def test_parameters_of_a_subclass() -> None:
    w, x = torch.randn(4, 4), torch.randn(3, 4)
    weight = nn.Parameter(w.tpu().as_subclass(Tagged))
    got = torch.compile(lambda x, w: torch.tanh(x @ w), backend="tpu")(x.tpu(), weight)
    assert isinstance(got, Tagged)
    got.sum().backward()
    close(got.detach().as_subclass(torch.Tensor), torch.tanh(x @ w))
    assert weight.grad.device.type == "tpu"


# ---- Sizes that nobody knows -------------------------------------------------------------------------------------

UNKNOWN: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "arange": lambda x, n: torch.arange(n.item(), device=n.device) * 2,
    "zeros": lambda x, n: torch.zeros(n.item(), 3, device=n.device) + n,
    "narrow": lambda x, n: x.narrow(0, 0, n.item()).sum(0),
    "branch": lambda x, n: x * 2 if n.item() > 2 else x + 1,
    "nonzero": lambda x, n: x.nonzero().float().sum(0),
    "mask": lambda x, n: x[x > 5] * 2,
    "unique": lambda x, n: x.unique() + x.unique().shape[0],
}


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("settings", [(), ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")])
@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_from_values(name: str, settings: tuple[str, ...]) -> None:
    x, n = torch.arange(24.0).reshape(4, 6), torch.tensor(3)
    with torch._dynamo.config.patch(dict.fromkeys(settings, True)):
        compiled = torch.compile(UNKNOWN[name], backend="tpu")
        for scale in (1, 2):
            close(compiled((x * scale).tpu(), n.tpu()), UNKNOWN[name](x * scale, n))
        close(compiled(x.tpu(), torch.tensor(2).tpu()), UNKNOWN[name](x, torch.tensor(2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin().sum(0),
        lambda x: x.softmax(0) @ x.t(),
        lambda x: x.reshape(-1)[: x.shape[0]],
        lambda x: x * 2 if x.shape[0] > 3 else x + 1,
    ],
)
def test_mark_unbacked(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = torch.compile(function, backend="tpu")
    for rows in (4, 2, 9):
        x = torch.randn(rows, 6)
        given = x.tpu()
        torch._dynamo.decorators.mark_unbacked(given, 0)
        close(compiled(given), function(x))


# ---- PyTorch's tools ---------------------------------------------------------------------------------------------


def test_reset_forgets_and_compiles_nothing_again() -> None:
    x = torch.randn(4).tpu()
    compiled = torch.compile(lambda x: x.sin() * 3, backend="tpu")
    compiled(x)
    before = torch.tpu.metrics()["programs_compiled"]
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch.tpu.metrics()["programs_compiled"] == before


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_give_the_same_program(mode: str) -> None:
    x = torch.randn(4).tpu()
    want = torch.compile(lambda x: x.sin() * 5, backend="tpu")(x)
    before = torch.tpu.metrics()["programs_compiled"]
    torch.compiler.reset()
    assert torch.equal(torch.compile(lambda x: x.sin() * 5, backend="tpu", mode=mode)(x), want)
    assert torch.tpu.metrics()["programs_compiled"] == before


LOGGED = """
import sys
sys.stderr = sys.stdout
import torch
compiled = torch.compile(lambda x: x.softmax(0), backend="tpu", dynamic=True)
for n in (5, 6):
    compiled(torch.ones(n).tpu())
torch._dynamo.graph_break()
"""


def test_torch_logs_of_ours() -> None:
    text = subprocess_run.run(LOGGED, TORCH_LOGS="torch_tpu.compile,recompiles")
    assert "is traced for a program" in text and "sizes (6,) open the bucket (32,)" in text
