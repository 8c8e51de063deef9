# SPDX-License-Identifier: Apache-2.0
"""AOTAutograd's cache with our graphs in it: what a second process finds there, and what it must not find."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import subprocess_run
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def counted(run: Callable[[], Any]) -> tuple[Any, int, int]:
    """What `run` gives where Dynamo knows nothing yet, and how many graphs were found in the cache, and were not."""
    torch._dynamo.reset()
    counters.clear()
    result = run()
    return result, counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"]


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5, check_device=False)


@torch.library.custom_op("tpu_cache_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy() + 1).to(x.device)


@through_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.add_(1)
    return y * x


def drawn_again(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: F.dropout(torch.tanh(x), 0.5), x, use_reentrant=False).sum()


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: torch.softmax(x @ x.t(), -1) * 2,
    "in place": in_place,
    "views": lambda x: (x.t(), x[1:], x.view(-1) + 1),
    "a constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "an operator of the host": lambda x: through_numpy(x.sin()) * 2,
    "random": lambda x: F.dropout(x, 0.5),
    "a checkpoint": drawn_again,
}


SKIPPED = {
    ("an operator of the host", True): "the test's operator has no gradient",
    ("a checkpoint", False): "PyTorch refuses one that draws where nothing is differentiated",
}


@pytest.mark.filterwarnings("ignore:.*runs by itself")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_found_again(name: str, grad: bool) -> None:
    x = torch.randn(4, 4).tpu().requires_grad_(grad)

    def run() -> Any:
        torch.manual_seed(1)
        compiled = torch.compile(FUNCTIONS[name], backend="tpu")
        results = [compiled(x) for _ in range(2)]
        if grad:
            leaves = [t for t in torch.utils._pytree.tree_leaves(results) if t.requires_grad]
            results.append(torch.autograd.grad(sum(t.sum() for t in leaves), x)[0])
        return results

    if (name, grad) in SKIPPED:
        pytest.skip(SKIPPED[name, grad])
    first, hits, misses = counted(run)
    assert (hits, misses) == (0, 1)
    second, hits, misses = counted(run)
    assert (hits, misses) == (1, 0)
    torch.testing.assert_close(second, first, atol=0, rtol=0)


def test_sizes_that_vary() -> None:
    def run() -> list[torch.Tensor]:
        compiled = torch.compile(lambda x: x.softmax(0).sum(1) * x.shape[0] ** 0.5, backend="tpu", dynamic=True)
        return [compiled(torch.full((n, 3), 0.5, device="tpu")) for n in (5, 6, 7, 40)]

    first, hits, misses = counted(run)
    assert (hits, misses) == (0, 1)
    before = torch.tpu.metrics()["programs_compiled"]
    second, hits, misses = counted(run)
    assert (hits, misses) == (1, 0)
    assert torch.tpu.metrics()["programs_compiled"] == before  # buckets again
    torch.testing.assert_close(second, first, atol=0, rtol=0)


def test_what_the_key_holds() -> None:
    x = torch.ones(3, device="tpu")

    def run(**options: Any) -> tuple[int, int]:
        return counted(lambda: torch.compile(lambda x: x.cos() + 1, backend="tpu", **options)(x))[1:]

    assert run() == (0, 1)
    assert run() == (1, 0)
    assert run(options={"xla_cpu_enable_fast_math": True}) == (0, 1)
    assert run(options={"size_buckets": [64]}) == (0, 1)
    with torch.tpu.compiler.custom_compiler_options({"xla_cpu_enable_fast_math": False}):
        assert run() == (0, 1)
    assert run() == (1, 0)


def test_another_build_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tpu.compile import artifact

    x = torch.ones(3, device="tpu")

    def run() -> tuple[int, int]:
        return counted(lambda: torch.compile(lambda x: x.cos() + 2, backend="tpu")(x))[1:]

    assert run() == (0, 1)
    monkeypatch.setattr(artifact, "_build", lambda: ("another",))
    assert run() == (0, 1)
    monkeypatch.undo()


@pytest.mark.filterwarnings("ignore:.*")
def test_broken_files_are_not_believed(tmp_path: Path) -> None:
    x = torch.ones(3, device="tpu")

    def run() -> torch.Tensor:
        return torch.compile(lambda x: x.cos() + 3, backend="tpu")(x)

    want = counted(run)[0]
    entries = [path for path in (tmp_path / "torch" / "aotautograd").rglob("*") if path.is_file()]
    assert entries
    for path in entries:
        path.write_bytes(path.read_bytes()[:100])
    got, hits, _ = counted(run)
    assert hits == 0
    close(got, want)


TRAINING = """
import time
import torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1)).tpu()
compiled = torch.compile(model, backend="tpu", dynamic=True)
for n in (8, 9, 10):
    compiled(torch.ones(n, 6, device="tpu")).square().mean().backward()
found = counters["aot_autograd"]
print(torch.tpu.metrics()["programs_compiled"], found["autograd_cache_hit"], found["autograd_cache_saved"])
print(model[0].weight.grad.sum().item())
"""


def test_a_second_process_neither_differentiates_nor_compiles(tmp_path: Path) -> None:
    first, second = (
        subprocess_run.run(TRAINING, TORCH_TPU_CACHE_DIR=str(tmp_path / "programs")).splitlines() for _ in range(2)
    )
    assert int(first[0].split()[0]) > 0
    compiled, hits, made = map(int, second[0].split())
    assert (compiled, made) == (0, 0) and hits > 0
    assert first[1] == second[1]


# ---- Kept by the user -------------------------------------------------------------------------------------------


def test_serialize() -> None:
    from torch._functorch._aot_autograd.aot_autograd_result import deserialize_bundled_cache_entry

    from torch_tpu._internal.compile._backend import TpuBackend

    kept: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        kept.append(TpuBackend()(gm, inputs))
        return kept[-1]

    x, w = torch.randn(4, 4, device="tpu"), torch.randn(4, 4, device="tpu", requires_grad=True)
    want = torch.compile(lambda x, w: torch.tanh(x @ w), backend=backend)(x, w)
    again = deserialize_bundled_cache_entry(pickle.loads(pickle.dumps(kept[0].serialize())))
    (got,) = again(x, w)
    close(got, want)
    close(torch.autograd.grad(got.sum(), w), torch.autograd.grad(want.sum(), w))


SAVED = """
import sys, torch
from torch import nn

def function(x, w):
    return torch.tanh(x @ w).sum()

x = torch.arange(16.0, device="tpu").view(4, 4) / 16
w = torch.ones(4, 4, device="tpu").requires_grad_()
if {save}:
    compiled = torch.compile(function, fullgraph=True, backend="tpu").aot_compile(((x, w), {{}}))
    compiled.save_compiled_function({path!r})
else:
    with open({path!r}, "rb") as file:
        compiled = torch.compiler.load_compiled_function(file)
got = torch.autograd.grad(compiled(x, w), w)[0]
assert torch.allclose(got, torch.autograd.grad(function(x, w), w)[0])
"""


def test_aot_compile_saved_and_loaded(tmp_path: Path) -> None:
    for save in (True, False):
        subprocess_run.run(SAVED.format(save=save, path=str(tmp_path / "function.pt")))


def test_modules_of_one_kind_share(tmp_path: Path) -> None:
    """The key has shapes and code, no values: another model of the kind gives its own results."""
    models = [nn.Linear(4, 4).tpu() for _ in range(2)]
    x = torch.randn(2, 4).tpu()
    for i, model in enumerate(models):
        got, hits, _ = counted(lambda model=model: torch.compile(model, backend="tpu")(x))
        assert hits == i
        close(got, copy.deepcopy(model).cpu()(x.cpu()))
