# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="tpu"): what it gives against the CPU's eager PyTorch, and how often it compiles."""

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import program_counts
import pytest
import subprocess_run
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def on_tpu(values: Any) -> Any:
    """The same tensors on the device: views stay views of one storage."""
    bases: dict[int, torch.Tensor] = {}

    def move(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        storage = t.untyped_storage()
        if storage.data_ptr() not in bases:
            whole = torch.empty(0, dtype=t.dtype).set_(storage)
            bases[storage.data_ptr()] = whole.tpu()
        moved = bases[storage.data_ptr()].as_strided(t.shape, t.stride(), t.storage_offset())
        return moved.requires_grad_() if t.requires_grad else moved

    seen: dict[int, Any] = {}
    return tree_map(lambda t: seen.setdefault(id(t), move(t)), values)


def close(got: Any, want: Any, **tolerances: float) -> None:
    got = tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, got)
    want = tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, want)
    torch.testing.assert_close(got, want, **tolerances)


def check(function: Callable[..., Any], *inputs: Any, times: int = 2, **options: Any) -> Any:
    """Compiled on tpu against eager on the CPU: results and what became of the inputs."""
    given = on_tpu(inputs)
    compiled = torch.compile(function, backend="tpu", **options)
    for _ in range(times):
        want, got = function(*inputs), compiled(*given)
        close(got, want)
        close(given, inputs)
    return got


def check_one_program(step: Callable[..., Any], given: tuple[Any, ...], host: tuple[Any, ...]) -> None:
    """Three calls, which write to the first argument, are one program and do on tpu what they do on the CPU."""
    compiled = torch.compile(step, backend="tpu", fullgraph=True)
    before = program_counts.needed()
    for _ in range(3):
        close(compiled(*given), step(*host), atol=1e-5, rtol=1e-4)
    assert program_counts.needed() - before <= 1
    close(given[0], host[0], atol=1e-5, rtol=1e-4)


# ---- Inputs and outputs ------------------------------------------------------------------------------------------


def mutate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    x[0].mul_(2)
    return x * y


def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.mul_(2)
    return x + y, y - 1


BASE = torch.arange(24.0).reshape(4, 6)


def inputs_of(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    base = BASE.clone()
    return {
        "plain": (base, torch.ones(4, 6)),
        "transposed": (base.t(), torch.ones(6, 4)),
        "offset": (base[1:, 2:], torch.ones(3, 4)),
        "strided": (base[::2, ::3], torch.ones(2, 2)),
        "duplicated": (base, base),
        "overlapping": (base[:3], base[1:]),
        "broadcast": (base, torch.ones(6).expand(4, 6)),
    }[kind]


@pytest.mark.parametrize("function", [mutate, both])
@pytest.mark.parametrize("kind", ["plain", "transposed", "offset", "strided", "duplicated", "overlapping", "broadcast"])
def test_inputs(kind: str, function: Callable[..., Any]) -> None:
    if (kind, function) == ("overlapping", mutate):
        pytest.skip("the CPU refuses to write to a part of what it reads")
    check(function, *inputs_of(kind))


def test_outputs_that_alias_inputs() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.t(), x[1:], x.view(-1), x + 0

    x = BASE.clone()
    given = x.tpu()
    out = torch.compile(views, backend="tpu")(given)
    close(out, views(x))
    assert out[0] is given
    given.mul_(3)
    close(out[:4], [t * 3 for t in views(x)[:4]])
    close(out[4], x)


def test_an_input_passed_on_is_not_copied() -> None:
    model = nn.Linear(8, 8).tpu()
    compiled = torch.compile(model, backend="tpu")
    x = torch.randn(2, 8).tpu().requires_grad_()
    compiled(x).sum().backward()
    before = torch.tpu.memory_allocated()
    out = compiled(x)  # saves the weight for the backward: no second copy of it
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before < 8 * 8 * 4
    out.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    on_device = copy.deepcopy(model).tpu()
    compiled = torch.compile(on_device, backend="tpu")
    with mode():
        for _ in range(2):
            close(compiled(BASE.tpu()), model(BASE))


def test_inference_tensors_mutated() -> None:
    with torch.inference_mode():
        check(mutate, *inputs_of("plain"))


def test_autocast() -> None:
    model = nn.Linear(6, 6)
    on_device = copy.deepcopy(model).tpu()

    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return model(x)

    got = torch.compile(run, backend="tpu")(on_device, BASE.tpu() / 24)
    assert got.dtype == torch.bfloat16
    close(got, run(model, BASE / 24), atol=2e-2, rtol=2e-2)
    got.float().sum().backward()
    assert on_device.weight.grad is not None


def test_buffers() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    on_device = copy.deepcopy(model).tpu()
    compiled = torch.compile(on_device, backend="tpu")
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        want, got = model(x), compiled(x.tpu())
        close(got, want, atol=1e-4, rtol=1e-4)
        want.square().sum().backward()
        got.square().sum().backward()
    close(dict(on_device.named_buffers()), dict(model.named_buffers()), atol=1e-5, rtol=1e-4)
    for a, b in zip(on_device.parameters(), model.parameters(), strict=True):
        close(a.grad, b.grad, atol=1e-2, rtol=1e-3)


def test_numbers_and_none() -> None:
    check(lambda x, n, s: (x * n + s, None, n + 1, x.shape[0]), BASE.clone(), 3, 0.5)


# ---- Random numbers ----------------------------------------------------------------------------------------------


def test_random_operators_follow_the_generator() -> None:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x), F.dropout(x, 0.5)

    x = torch.ones(64).tpu()
    compiled = torch.compile(draw, backend="tpu")
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    again = compiled(x)
    torch.testing.assert_close(first, again)
    assert not torch.equal(first[0], second[0])
    torch.manual_seed(3)
    torch.testing.assert_close(first, draw(x))


def test_checkpoint_with_dropout_draws_the_same() -> None:
    weight = torch.randn(16, 16).tpu().requires_grad_()

    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x @ weight), 0.5)

    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False).sum()

    x = torch.randn(4, 16).tpu().requires_grad_()
    compiled = torch.compile(run, backend="tpu")
    for _ in range(2):
        torch.manual_seed(1)
        want = torch.autograd.grad(run(x), (x, weight))
        torch.manual_seed(1)
        got = torch.autograd.grad(compiled(x), (x, weight))
        torch.testing.assert_close(got, want)


# ---- Control flow ------------------------------------------------------------------------------------------------


def test_cond() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2 - 1, (x,))

    before = torch.tpu.fallback_stats()
    check(run, torch.ones(4))
    check(run, -torch.ones(4))
    assert torch.tpu.fallback_stats() == before


def test_cond_with_gradient() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,)).sum()

    compiled = torch.compile(run, backend="tpu")
    for sign in (1, -1):
        a, b = (sign * torch.ones(4)).requires_grad_(), (sign * torch.ones(4)).tpu().requires_grad_()
        run(a).backward()
        compiled(b).backward()
        close(b.grad, a.grad)


def test_while_loop() -> None:
    from torch._higher_order_ops import while_loop

    def run(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2 + i), (torch.zeros_like(n), x))

    before = program_counts.needed()
    check(run, torch.ones(3), torch.tensor(5))
    assert program_counts.needed() - before <= 3  # one loop, not five turns; two of the test's copies
    check(run, torch.ones(3), torch.tensor(0))


def test_scan() -> None:
    from torch._higher_order_ops import scan

    def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carry = torch.tanh(carry * 0.5 + x)
        return carry, carry * 2

    def run(init: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(step, init, xs)

    check(run, torch.zeros(4), torch.randn(16, 4))


def test_scan_with_gradient() -> None:
    from torch._higher_order_ops import scan

    def run(init: torch.Tensor, xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            carry = torch.tanh(carry @ w + x)
            return carry, carry * 2

        last, ys = scan(step, init, xs)
        return last.sum() + ys.square().sum()

    cpu = [torch.zeros(4).requires_grad_(), torch.randn(5, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()]
    tpu = [t.detach().tpu().requires_grad_() for t in cpu]
    torch.compile(run, backend="aot_eager")(*cpu).backward()
    torch.compile(run, backend="tpu")(*tpu).backward()
    close([t.grad for t in tpu], [t.grad for t in cpu], atol=1e-4, rtol=1e-4)


def test_checkpoint_is_recomputed() -> None:
    """What a checkpoint computes is not among the tensors saved for the backward."""
    weight = torch.randn(32, 32).tpu().requires_grad_()

    def block(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(x @ weight)
        return x

    def saved(function: Callable[..., Any]) -> int:
        sizes: list[int] = []
        x = torch.randn(64, 32).tpu().requires_grad_()
        compiled = torch.compile(function, backend="tpu")
        compiled(x).sum().backward()
        torch.tpu.synchronize()
        before = torch.tpu.memory_allocated()
        out = compiled(x)
        torch.tpu.synchronize()
        sizes.append(torch.tpu.memory_allocated() - before)
        out.sum().backward()
        return sizes[0]

    whole = saved(lambda x: block(x))
    kept = saved(lambda x: checkpoint(block, x, use_reentrant=False))
    assert kept < whole / 4


def test_checkpoints_are_recomputed_one_after_the_other(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one's inputs wait for the gradient that comes down to it, so that XLA holds no two at once."""
    weights = [torch.randn(16, 16).tpu().requires_grad_() for _ in range(3)]

    def run(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = checkpoint(lambda x, w: torch.tanh(torch.tanh(x @ w) @ w), x, w, use_reentrant=False)
        return x.square().sum()

    x = torch.randn(4, 16).tpu().requires_grad_()
    want = torch.autograd.grad(run(x), (x, *weights))
    monkeypatch.setenv("TORCH_TPU_DUMP", str(tmp_path))
    got = torch.autograd.grad(torch.compile(run, backend="tpu")(x), (x, *weights))
    close(got, [t.cpu() for t in want], atol=1e-5, rtol=1e-4)
    counts = [f.read_text().count("optimization_barrier") for f in sorted(tmp_path.glob("*compiled*"))]
    assert counts[0] == 0 and counts[1] >= 3


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, q, kv: s + (q - kv), block_mask=mask)

    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    want = run(q, k, v, create_block_mask(causal, None, None, 128, 128, device="cpu"))
    mask = create_block_mask(causal, None, None, 128, 128, device="tpu")
    given = [t.tpu().requires_grad_() for t in (q, k, v)]
    got = torch.compile(run, backend="tpu")(*given, mask)
    close(got, want, atol=1e-4, rtol=1e-4)
    got.sum().backward()
    bias = torch.arange(128.0)[:, None] - torch.arange(128.0)
    bias = bias.masked_fill(bias < 0, float("-inf"))
    plain = [t.clone().requires_grad_() for t in (q, k, v)]
    F.scaled_dot_product_attention(*plain, attn_mask=bias).sum().backward()
    close([t.grad for t in given], [t.grad for t in plain], atol=1e-3, rtol=1e-3)


# ---- What a program can't hold -----------------------------------------------------------------------------------


@torch.library.custom_op("tpu_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tpu_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy() + 1).to(x.device)


@through_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tpu_test::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


def test_custom_operators() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = doubled(x.sin())
        add_one_(y)
        add_one_(x)
        return y * x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(run, BASE.clone())


def test_an_operator_that_reads_values_runs_between_programs() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return through_numpy(x.sin() * 2).cos() + x

    with pytest.warns(UserWarning, match=r"tpu_test.through_numpy.*at .*test_compile.py:\d+"):
        check(run, BASE.clone())


def test_an_operator_that_reads_values_is_an_error_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CPU_FALLBACK", "error")
    x = torch.ones(4).tpu()
    with pytest.raises(Exception, match=r"tpu_test.through_numpy.*at .*test_compile.py:\d+"):
        torch.compile(lambda x: through_numpy(x) + 1, backend="tpu")(x)
    close(x + 1, torch.full((4,), 2.0))


def test_cpu_tensors_in_the_graph() -> None:
    def run(x: torch.Tensor, host: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        moved = (host * 2).to(x.device)
        return x * number + moved, host + 1, torch.ones(2) * 3

    x, host, number = torch.ones(4), torch.arange(4.0), torch.tensor(2.5)
    compiled = torch.compile(run, backend="tpu")
    for _ in range(2):
        got = compiled(x.tpu(), host, number)
        assert [t.device.type for t in got] == ["tpu", "cpu", "cpu"]
        close(got, run(x, host, number))


def test_graph_breaks() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + len(y.tolist())
        torch._dynamo.graph_break()
        return y - x.nonzero().shape[0]

    check(run, BASE.clone())
    explained = torch._dynamo.explain(run)(BASE.tpu())
    assert explained.graph_break_count >= 2


def test_scalar_outputs_captured() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda x: x * x.sum().item(), BASE.clone())


def test_an_error_leaves_the_device_usable() -> None:
    @torch.compile(backend="tpu")
    def wrong(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] + 1

    x = torch.arange(4.0).tpu()
    close(wrong(x, torch.tensor([1]).tpu()), torch.tensor([2.0]))
    with pytest.raises(RuntimeError, match="7"):
        torch.compile(lambda x: x @ torch.ones(7, 7, device="tpu"), backend="tpu")(x)
    close(wrong(x, torch.tensor([2]).tpu()), torch.tensor([3.0]))
    close(x + 1, torch.arange(4.0) + 1)


def test_threads() -> None:
    @torch.compile(backend="tpu")
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum(-1)

    results: dict[int, bool] = {}

    def work(n: int) -> None:
        for _ in range(3):
            x = torch.arange(float(n * 3)).reshape(3, n)
            got = run(x.tpu())
            results[n] = torch.allclose(got.cpu(), (x.sin() * 2).sum(-1), atol=1e-5)

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == dict.fromkeys((2, 3, 4, 5), True)


# ---- Sizes -------------------------------------------------------------------------------------------------------


def frames_compiled() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("how", ["dynamic", "mark", "automatic"])
def test_dynamic_sizes(how: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ x.t(), -1).sum(0) * x.shape[0]

    compiled = torch.compile(run, backend="tpu", dynamic=True if how == "dynamic" else None)
    torch._dynamo.utils.counters.clear()
    for n in (3, 4, 5, 6, 3):
        x = torch.randn(n, 8)
        given = x.tpu()
        if how == "mark":
            torch._dynamo.mark_dynamic(given, 0)
        close(compiled(given), run(x), atol=1e-4, rtol=1e-4)
    assert frames_compiled() <= (2 if how == "automatic" else 1)  # Dynamo traces once for all sizes


def test_dynamic_sizes_with_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    on_device = copy.deepcopy(model).tpu()
    compiled = torch.compile(on_device, backend="tpu", dynamic=True)
    for n in (2, 3, 7):
        x = torch.randn(n, 4)
        model(x).square().sum().backward()
        compiled(x.tpu()).square().sum().backward()
    for a, b in zip(on_device.parameters(), model.parameters(), strict=True):
        close(a.grad, b.grad, atol=1e-4, rtol=1e-4)


# ---- Options, caches, export -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes(mode: str) -> None:
    check(lambda x: x.sin() + 1, BASE.clone(), mode=mode)


def test_unknown_options() -> None:
    with pytest.raises(Exception, match="unknown options"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"triton.cudagraphs": True})(BASE.tpu())


def test_options_of_xla() -> None:
    x = BASE.clone() / 7
    given = x.tpu()
    before = program_counts.needed()
    for options in ({}, {"xla_cpu_enable_fast_math": True}):
        torch._dynamo.reset()
        close(torch.compile(lambda x: x.sin() * 7, backend="tpu", options=options)(given), x.sin() * 7)
    assert program_counts.needed() - before == 2  # a program each
    with torch.tpu.compiler.custom_compiler_options({"xla_no_such_option": 1}):
        with pytest.raises(RuntimeError, match="xla_no_such_option"):
            torch.compile(lambda x: x.sin() * 9, backend="tpu")(given)
    close(torch.compile(lambda x: x.sin() * 9, backend="tpu")(given), x.sin() * 9)


def test_backend_object() -> None:
    from torch_tpu._internal.compile._backend import TpuBackend

    gm = torch.fx.symbolic_trace(lambda x: (x.sin() + 1,))
    close(TpuBackend()(gm, [BASE.tpu()])(BASE.tpu())[0], BASE.sin() + 1)
    close(torch.compile(lambda x: x * 2, backend=TpuBackend())(BASE.tpu()), BASE * 2)


def test_a_training_step_in_one_function() -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        return model, None

    model, _ = made()
    on_device = copy.deepcopy(model).tpu()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, on_device)]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(step, backend="tpu")
    x = torch.randn(8, 6)
    for _ in range(4):
        close(compiled(on_device, optimizers[1], x.tpu()), step(model, optimizers[0], x), atol=1e-5, rtol=1e-4)
    close(dict(on_device.named_parameters()), dict(model.named_parameters()), atol=1e-4, rtol=1e-3)


def test_a_functional_training_step_is_one_program() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def step(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        def loss_of(p: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, p, (x,)).square().mean()

        gradients, loss = torch.func.grad_and_value(loss_of)(parameters)
        with torch.no_grad():
            for name, p in parameters.items():
                p.sub_(0.1 * gradients[name])
        return loss

    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    given = {name: p.tpu() for name, p in parameters.items()}
    x = torch.randn(8, 6)
    x_tpu = x.tpu()
    torch.compiler.reset()
    check_one_program(step, (given, x_tpu), (parameters, x))


def test_a_training_step_with_an_optimizer_is_one_program() -> None:
    from torch.optim.adamw import adamw

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def step(state: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        def loss_of(p: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(model, p, (x,)).square().mean()

        gradients, loss = torch.func.grad_and_value(loss_of)(state["p"])
        with torch.no_grad():
            parameters, ordered = list(state["p"].values()), [gradients[name] for name in state["p"]]
            kinds = {"amsgrad": False, "maximize": False, "capturable": False, "foreach": False}
            rates = {"beta1": 0.9, "beta2": 0.99, "lr": 1e-2, "weight_decay": 0.1, "eps": 1e-8}
            adamw(parameters, ordered, state["m"], state["v"], [], state["steps"], **kinds, **rates)
        return loss

    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {kind: [torch.zeros_like(p) for p in parameters.values()] for kind in "mv"}
    state = {"p": parameters, **moments, "steps": [torch.zeros(()) for _ in parameters]}
    given, x = on_tpu(state), torch.randn(8, 6)
    x_tpu = x.tpu()
    check_one_program(step, (given, x_tpu), (state, x))


def test_export_runs_on_the_device() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    exported = torch.export.export(copy.deepcopy(model).tpu(), (BASE.tpu(),))
    close(exported.module()(BASE.tpu()), model(BASE), atol=1e-5, rtol=1e-5)
    close(torch.compile(exported.module(), backend="tpu")(BASE.tpu()), model(BASE), atol=1e-5, rtol=1e-5)


SECOND_PROCESS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).tpu()
x = torch.randn(8, 6).tpu()
compiled = torch.compile(model, backend="tpu")
compiled(x).square().mean().backward()
print(torch.tpu.metrics()["programs_compiled"], model[0].weight.grad.sum().item())
"""


def test_a_second_process_compiles_nothing(tmp_path: Any) -> None:
    first = subprocess_run.run(SECOND_PROCESS, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()
    second = subprocess_run.run(SECOND_PROCESS, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()
    assert int(first[0]) > 0 and int(second[0]) == 0
    assert first[1] == second[1]


# ---- Around the program ------------------------------------------------------------------------------------------


def test_the_generators_state_is_set_between_two_programs() -> None:
    state = torch.tpu.get_rng_state()

    def draw(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.tpu.set_rng_state(state)
        first = torch.rand_like(x)
        between = torch.tpu.get_rng_state()
        torch.tpu.manual_seed(3)
        return first, between, torch.rand_like(x)

    x = torch.ones(4).tpu()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.compile(draw, backend="tpu")(x)
    close(got, [t.cpu() for t in draw(x)])


def test_sizes_that_depend_on_values() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 5]
        return (kept * 2).sum() + kept.shape[0]

    check(run, BASE.clone())
    given = BASE.tpu()
    torch._dynamo.decorators.mark_unbacked(given, 0)
    close(torch.compile(lambda x: x.sin().sum(0), backend="tpu")(given), BASE.sin().sum(0))


def test_the_memory_report() -> None:
    w = torch.randn(64, 64).tpu().requires_grad_()
    compiled = torch.compile(lambda x: torch.tanh(x @ w).sum(), backend="tpu")
    with torch.tpu.compiler.memory_report() as report:
        compiled(torch.randn(8, 64).tpu()).backward()
    assert len(report) == 2  # forward and backward
    assert report[0].arguments == 4 * (64 * 64 + 8 * 64)
    assert all(p.peak >= p.arguments + p.outputs - p.aliased for p in report)


LOGGED = """
import sys
sys.stderr = sys.stdout
import torch
torch.compile(lambda x: x.sin() + 1, backend="tpu")(torch.ones(3).tpu())
"""


def test_torch_logs() -> None:
    text = subprocess_run.run(LOGGED, TORCH_LOGS="graph_code,aot_graphs")
    assert "torch.ops.aten.sin" in text or "aten.sin.default" in text


def test_indices_that_the_graph_holds():
    """The program that checks them reads the graph's constants too."""
    table = torch.tensor([3, 1, 2], device="tpu")
    x = torch.arange(12.0, device="tpu").view(4, 3)
    f = torch.compile(lambda x, i: (x[[0, 2]], x[table[i]], torch.unravel_index(i, (2, 2))[0]), backend="tpu")
    i = torch.tensor([0, 2], device="tpu").flip(0)
    got, want = f(x, i), (x[[0, 2]], x[table[i]], torch.unravel_index(i, (2, 2))[0])
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(IndexError):
        f(x, i + 7)
