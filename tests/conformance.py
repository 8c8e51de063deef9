# SPDX-License-Identifier: Apache-2.0
"""PyTorch's OpInfo samples on tpu, judged by the CPU: what the conformance tests and tools/opcheck.py share.

A sample is made on the CPU and moved, geometry included. Both devices run it; values, dtypes, shapes and
what became of the inputs must agree. Where the CPU refuses, tpu must refuse with the same exception class.
"""

import collections
import contextlib
import importlib.util
import itertools
import random
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleInfo
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo, SampleInput

# Values are drawn: judged by shape, dtype, device and distribution.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "uniform", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.rrelu",
}  # fmt: skip

# Values are whatever the memory held.
UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# A vector comes out up to its sign (a complex one up to its phase), and the algorithms choose differently.
UP_TO_SIGN = {"linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank"}

# Results are (values, indices), and which of equal elements an index names is open: the CPU's choice is unstable. What
# counts is that it names one of that value, and that no place is named twice. With the position of `dim` among the
# arguments.
FREE_AMONG_EQUALS = {"argsort": 0, "kthvalue": 1, "median": 0, "mode": 0, "nanmedian": 0, "sort": 0, "topk": 1}

# Autocast's lists are CUDA's, and the CPU has others: these differ in what they compute in.
AUTOCAST = {"addmv", "mv", "addr", "pinverse", "svd_lowrank", "pca_lowrank", "chalf",
    "nn.functional.binary_cross_entropy", "nn.functional.multi_head_attention_forward"}  # fmt: skip

# Where the CPU's own rounding error is past PyTorch's tolerance, with its cause: float64 is the referee, and tpu
# may be at most 4 times as far from it as the CPU.
ROUNDING = {
    "matrix_exp": "powers of the matrix reach 1e5, their float32 errors stay in the sum",
    "nn.functional.conv2d": "a sum of many products up to 1e2, in another order",
    "nn.functional.conv_transpose2d": "a sum of many products up to 1e2, in another order",
    "nn.functional.conv_transpose3d": "a sum of many products up to 1e2, in another order",
    "bmm": "a sum of complex products up to 1e2, in another order",
    "asin": "the gradient divides by the root of 1 - x^2, near x = 1; in one program that is rounded once",
    "atanh": "the gradient divides by 1 - x^2, near x = 1; in one program that is rounded once",
    "stft": "the window's gradient sums over all frames, in another order",
    "kron": "the gradient sums 25 products up to 1e2, in another order",
    "grid_sampler_2d": "the grid's gradient sums over channels, in another order",
    "grid_sampler_3d": "the grid's gradient sums over channels, in another order",
    "__rpow__": "a complex power is exp(y log x): the error of y log x times up to 1e1 is relative",
    "pow": "a complex power is exp(y log x): the error of y log x times up to 1e1 is relative",
    "nn.functional.ctc_loss": "the gradient is a difference of exponentials of sums of logarithms",
    "nn.functional.layer_norm": "the gradient of one normalized element is 0, the CPU gives 1e-5",
    "linalg.cond": "the gradient goes through the inverse of the singular values",
    "linalg.householder_product": "the gradient divides by the reflectors' norms",
    "linalg.lstsq": "the gradient goes through the pseudo-inverse",
    "linalg.lstsq.grad_oriented": "the gradient goes through the pseudo-inverse",
    "linalg.pinv.hermitian": "the gradient multiplies by the pseudo-inverse twice: the CPU is further off than tpu",
    "linalg.multi_dot": "products of three matrices with entries up to 1e1, in another order",
}


def full_name(op: OpInfo | ModuleInfo) -> str:
    variant = getattr(op, "variant_test_name", "")
    return f"{op.name}.{variant}" if variant else op.name


def entries(dtype: torch.dtype) -> list[OpInfo]:
    return [op for op in op_db if dtype in op.supported_dtypes("cpu")]


def differentiable(op: OpInfo, dtype: torch.dtype = torch.float32) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def tree(f: Callable[[torch.Tensor], Any], x: Any) -> Any:
    """Maps the tensors in a sample; the device moves with them."""
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, torch.Size):
        return x
    if isinstance(x, (list, tuple)):
        mapped = [tree(f, v) for v in x]
        return type(x)(*mapped) if hasattr(x, "_fields") else type(x)(mapped)
    if isinstance(x, dict):
        return {k: tree(f, v) for k, v in x.items()}
    return x


def tensors(x: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree(found.append, x)
    return found


def to_tpu(x: torch.Tensor, shared: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
    """A leaf on tpu with the geometry of `x`: strides, offset and what lies between. Storages in `shared` stay one."""
    t = x.detach()
    if t.device.type != "cpu":
        return x
    if t.layout != torch.strided or t.is_conj() or t.is_neg():
        return t.to("tpu").requires_grad_(x.requires_grad)
    key = t.untyped_storage()._cdata
    if t.is_contiguous() and t.storage_offset() == 0 and key not in (shared or {}):
        moved = t.to("tpu")
    else:
        held = (shared or {}).get(key)
        if held is None or held.dtype != t.dtype:
            held = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).to("tpu")
        if shared and key in shared:
            shared[key] = held
        moved = held.as_strided(t.size(), t.stride(), t.storage_offset())
    moved = torch.nn.Parameter(moved) if isinstance(x, torch.nn.Parameter) else moved
    return moved.requires_grad_(x.requires_grad)


def shared_storages(x: Any) -> dict[int, Any]:
    """Storages under several tensors of a sample."""
    distinct = {id(t): t for t in tensors(x) if t.layout == torch.strided and t.device.type == "cpu"}
    counts = collections.Counter(t.untyped_storage()._cdata for t in distinct.values())
    return {key: None for key, n in counts.items() if n > 1}


def on_tpu(x: Any, seen: dict[int, torch.Tensor] | None = None, shared: dict[int, Any] | None = None) -> Any:
    """A sample's values on tpu; a tensor that occurs twice is one tensor there too."""
    seen = {} if seen is None else seen
    shared = shared_storages(x) if shared is None else shared
    if isinstance(x, torch.Tensor):
        if id(x) not in seen:
            seen[id(x)] = to_tpu(x, shared)
        return seen[id(x)]
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        mapped = [on_tpu(v, seen, shared) for v in x]
        return type(x)(*mapped) if hasattr(x, "_fields") else type(x)(mapped)
    if isinstance(x, dict):
        return {k: on_tpu(v, seen, shared) for k, v in x.items()}
    if isinstance(x, torch.device) and x.type == "cpu" or isinstance(x, str) and x == "cpu":
        return torch.device("tpu")
    return x


def seed(n: int) -> None:
    random.seed(n)
    torch.manual_seed(n)


def spread(made: Any, limit: int) -> list[Any]:
    """`limit` of the first 40, evenly: neighbours are alike, the first is often a lone scalar."""
    seed(0)
    first = list(itertools.islice(made, 40))
    if limit == 1:
        return first[len(first) // 2 :][:1]
    chosen = {round(i * (len(first) - 1) / (limit - 1)) for i in range(limit)}
    return [first[i] for i in sorted(chosen) if i >= 0]


def samples(op: OpInfo, dtype: torch.dtype, limit: int, grad: bool = False) -> Iterator[tuple[Any, Any]]:
    """The same sample for the CPU and for tpu: (sample, moved sample)."""
    for s in spread(op.sample_inputs("cpu", dtype, requires_grad=grad), limit):
        m = moved(s)
        if op.name == "tensor_split":  # PyTorch wants the indices on the CPU
            m.args, m.kwargs = s.args, s.kwargs
        if op.name == "arange" or op.name == "linspace" and "dtype" not in s.kwargs:  # some samples name no device
            m.kwargs = {"device": "tpu", **m.kwargs}
        yield s, m


def moved(s: SampleInput) -> SampleInput:
    values, args, kwargs = on_tpu((s.input, tuple(s.args), s.kwargs))
    made = SampleInput(values, args=args, kwargs=kwargs)
    made.output_process_fn_grad, made.broadcasts_input = s.output_process_fn_grad, s.broadcasts_input
    return made


def doubled(s: SampleInput) -> SampleInput:
    """In double precision on the CPU, for the referee."""
    wide = {
        torch.bfloat16: torch.float64, torch.float16: torch.float64, torch.float32: torch.float64,
        torch.complex64: torch.complex128,
    }  # fmt: skip
    values = tree(
        lambda t: t.detach().to(wide.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad),
        (s.input, tuple(s.args), {k: wide.get(v, v) if k == "dtype" else v for k, v in s.kwargs.items()}),
    )
    made = SampleInput(values[0], args=values[1], kwargs=values[2])
    made.output_process_fn_grad = s.output_process_fn_grad
    return made


def call(op: Callable[..., Any], s: SampleInput, **kwargs: Any) -> Any:
    return op(s.input, *s.args, **{**s.kwargs, **kwargs})


def tolerance(op: OpInfo | ModuleInfo, dtype: torch.dtype) -> dict[str, float]:
    """PyTorch's own for the dtype, widened by the entry's decorators for the CPU."""
    rtol, atol = default = default_tolerances(dtype)
    for info in op.decorators:
        if isinstance(info, DecorateInfo) and info.device_type not in (None, "cpu"):
            continue
        for decorator in info.decorators if isinstance(info, DecorateInfo) else [info]:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                rtol, atol = max(rtol, decorator.d[dtype].rtol), max(atol, decorator.d[dtype].atol)
            elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    return {} if (rtol, atol) == default else {"rtol": rtol, "atol": atol}  # {}: by the dtype of each result


def close(got: Any, want: Any, what: str = "", **tolerances: float) -> None:
    """Asserts that `got` lies on tpu and is what the CPU gives in `want`."""
    for t in tensors(got):
        assert t.device.type == "tpu", f"{what}: a result is on {t.device}"
    got = tree(lambda t: t.detach().cpu(), got)
    want = tree(torch.Tensor.detach, want)
    if isinstance(want, (torch.Tensor, list, tuple, dict, bool, int, float, complex)):
        torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m: f"{what}: {m}", **tolerances)
    else:
        assert got == want, f"{what}: {got} instead of {want}"


def judge(op: OpInfo, dtype: torch.dtype, got: Any, want: Any, what: str, exact: Callable[[], Any]) -> None:
    """`close` for an entry; what it may differ in is written at UP_TO_SIGN and ROUNDING."""
    if op.name in UP_TO_SIGN:
        got, want = (tree(lambda t: t.abs() if t.dim() > 1 else t, x) for x in (got, want))
    try:
        close(got, want, what, **tolerance(op, dtype))
    except AssertionError:
        # bfloat16 and float16: which intermediate results are rounded differs, mostly in our favour
        small = dtype in (torch.bfloat16, torch.float16)
        if not small and (full_name(op) not in ROUNDING or dtype not in (torch.float32, torch.complex64)):
            raise
        for g, w, e in zip(tensors(got), tensors(want), tensors(exact()), strict=True):
            if not e.numel():
                continue
            error, cpu_error = (distance(x.detach().cpu().to(e.dtype), e.detach()) for x in (g, w))
            if not error <= 4 * cpu_error:
                raise


def distance(x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The greatest difference; between equal infinities, and between two NaNs, there is none."""
    same = (x == exact) | (x != x) & (exact != exact)
    return torch.where(same, 0, (x - exact).abs()).max()


def alike(got: Any, want: Any) -> None:
    """As `close`, values aside."""
    blank = lambda x: tree(lambda t: torch.zeros_like(t).detach(), x)  # noqa: E731
    numbers = isinstance(want, (bool, int, float, complex))
    assert type(got) is type(want) if numbers else close(blank(got), blank(want)) is None


def is_random(op: OpInfo, s: SampleInput) -> bool:
    if op.name == "nn.functional.multi_head_attention_forward":
        return s.kwargs.get("training", True) and s.args[9] > 0
    return op.name in RANDOM or s.kwargs.get("dropout_p", 0) > 0


def same_distribution(draw_tpu: Callable[[], Any], draw_cpu: Callable[[], Any], runs: int = 100) -> None:
    """Kolmogorov-Smirnov on the first element and on the mean of each result: p = 1e-4, seeds fixed."""
    manual_seed = torch.manual_seed

    def drawn(draw: Callable[[], Any], n: int) -> list[float]:
        manual_seed(n)
        # many an entry seeds with a constant before it draws
        with unittest.mock.patch.object(torch, "manual_seed", lambda _: manual_seed(n)):
            found = [(t.real if t.is_complex() else t).detach().cpu().double() for t in tensors(draw()) if t.numel()]
        return [float(x) for t in found for x in (t.flatten()[0], t.mean())]

    def draws(draw: Callable[[], Any]) -> torch.Tensor:
        return torch.tensor([drawn(draw, n) for n in range(runs)])

    got, want = draws(draw_tpu).sort(0)[0], draws(draw_cpu).sort(0)[0]
    for g, w in zip(got.T, want.T, strict=True):
        if torch.allclose(g, w, rtol=1e-4, atol=1e-6, equal_nan=True):
            continue
        scale = w.nan_to_num().abs().max() / 1e4  # what differs by rounding is one value
        g, w = torch.round(g / scale), torch.round(w / scale)
        at = torch.cat([g, w])
        apart = (torch.searchsorted(g, at, right=True) - torch.searchsorted(w, at, right=True)).abs().max() / runs
        assert apart < 2.2 * (2 / runs) ** 0.5, f"another distribution than the CPU's: {g} instead of {w}"


def named_elements(op: OpInfo, s: SampleInput, result: Any) -> Any:
    """(values, the elements that the indices name, whether no place is named twice) for (values, indices)."""
    if op.name == "argsort":
        result = (result, result)
    if not isinstance(result, tuple) or not s.input.dim() or s.kwargs.get("stable"):
        return result
    values, indices = result
    dim = s.kwargs.get("dim", next(iter(s.args[FREE_AMONG_EQUALS[op.name] :]), -1))
    places = indices if indices.dim() == s.input.dim() else indices.unsqueeze(dim)
    named = s.input.detach().to(values.device).gather(dim, places)
    values = named if op.name == "argsort" else values
    return values, named.reshape(values.shape), places.sort(dim)[0].diff(dim=dim).ne(0).all()


def check_forward(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    """Returns how many samples the CPU could run."""
    ran = 0
    for n, (s, m) in enumerate(samples(op, dtype, limit)):
        try:
            want = call(op, s)
        except Exception:  # what the CPU refuses is the business of check_errors
            continue
        ran += 1
        got = call(op, m)
        if op.name in FREE_AMONG_EQUALS:
            got, want = named_elements(op, s, got), named_elements(op, s, want)
        if op.name in UNINITIALIZED or is_random(op, s):
            alike(got, want)
            if is_random(op, s) and tensors(want):
                same_distribution(lambda: call(op, m), lambda: call(op, s))  # noqa: B023
            continue

        def exact(n: int = n) -> tuple[Any, list[torch.Tensor]]:  # anew: the call may have written to its inputs
            d = doubled(spread(op.sample_inputs("cpu", dtype), limit)[n])
            return call(op, d), parts(d)

        judge(op, dtype, got, want, f"sample {n}", lambda: exact()[0])  # noqa: B023
        pairs = [p for p in zip(parts(m), parts(s), strict=True) if p[0].device.type == "tpu"]
        after, want_after = [p[0] for p in pairs], [p[1] for p in pairs]
        judge(op, dtype, after, want_after, f"inputs of sample {n}", lambda: exact()[1])  # noqa: B023
    return ran


def check_compiled(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    """As check_forward, with the call in a graph of torch.compile."""
    ran = 0
    for n, (s, m) in enumerate(samples(op, dtype, limit)):
        try:
            want = call(op, s)
        except Exception:
            continue
        ran += 1
        torch._dynamo.reset()
        # Many an entry seeds in a context that Dynamo can't trace.
        with unittest.mock.patch("torch.testing._utils.freeze_rng_state", contextlib.nullcontext):
            got = torch.compile(lambda m: call(op, m), backend="tpu")(m)
        if op.name in FREE_AMONG_EQUALS:
            got, want = named_elements(op, s, got), named_elements(op, s, want)
        if op.name in UNINITIALIZED or is_random(op, s):
            alike(got, want)
            continue

        def exact(n: int = n) -> Any:
            return call(op, doubled(spread(op.sample_inputs("cpu", dtype), limit)[n]))

        judge(op, dtype, got, want, f"sample {n}", exact)
        pairs = [p for p in zip(parts(m), parts(s), strict=True) if p[0].device.type == "tpu"]
        judge(op, dtype, [p[0] for p in pairs], [p[1] for p in pairs], f"inputs of sample {n}", exact)
    return ran


def check_autocast(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    """The results' dtypes under autocast, with float32 inputs."""
    ran = 0
    for n, (s, m) in enumerate(samples(op, torch.float32, limit)):
        try:
            with torch.autocast("cpu", dtype=dtype):
                want = [t.dtype for t in tensors(call(op, s))]
        except Exception:
            continue
        ran += 1
        with torch.autocast("tpu", dtype=dtype):
            got = [t.dtype for t in tensors(call(op, m))]
        assert got == want, f"sample {n}: {got} instead of {want}"
    return ran


def parts(s: SampleInput) -> list[torch.Tensor]:
    return tensors((s.input, tuple(s.args), s.kwargs))


def gradient(op: OpInfo, s: SampleInput, cotangents: list[torch.Tensor] | None) -> tuple[Any, list[torch.Tensor]]:
    """(gradients of the inputs that want one, the outputs' cotangents: drawn if not given)."""
    ins = [t for t in parts(s) if t.requires_grad]
    outs = [t for t in tensors(s.output_process_fn_grad(call(op, s))) if t.requires_grad]
    if cotangents is None:
        seed(1)
        cotangents = [torch.randn_like(t) for t in outs]
    seeds = [c.to(t.device, t.dtype) for c, t in zip(cotangents, outs, strict=True)]
    return torch.autograd.grad(outs, ins, seeds, allow_unused=True) if outs and ins else (), cotangents


def check_gradient(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    ran = 0
    for n, (s, m) in enumerate(samples(op, dtype, limit, grad=True)):
        try:
            want, cotangents = gradient(op, s, None)
        except Exception:
            continue
        if not want:
            continue
        ran += 1
        got, _ = gradient(op, m, cotangents)
        if is_random(op, s):
            alike(got, want)
        else:
            judge(op, dtype, got, want, f"gradient of sample {n}", lambda: gradient(op, doubled(s), cotangents)[0])  # noqa: B023
    return ran


def outcome(f: Callable[[], Any]) -> tuple[Any, type | None, str]:
    """(result, class of the exception or None, its text)."""
    try:
        return f(), None, ""
    except Exception as error:
        return None, type(error), str(error)


def same_outcome(
    op: OpInfo, dtype: torch.dtype, what: str, s: SampleInput, m: SampleInput, f: Callable[..., Any]
) -> None:
    """`f(sample, device)` refuses on both devices, with one class of exception, or gives the same."""
    want, refused, text = outcome(lambda: f(s, "cpu"))
    got, m_refused, m_text = outcome(lambda: f(m, "tpu"))
    assert m_refused is refused, f"{what}: {m_refused} ({m_text}), the CPU {refused} ({text})"
    if refused:
        return
    if op.name in UNINITIALIZED or is_random(op, s):
        alike(got, want)
    else:
        judge(op, dtype, got, want, what, lambda: call(op, doubled(s)))


def check_inplace(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    ran = 0
    inplace = op.get_inplace()
    for n, (s, m) in enumerate(samples(op, dtype, limit)):
        if s.broadcasts_input or not isinstance(s.input, torch.Tensor):
            continue
        ran += 1

        def written(s: SampleInput, device: str) -> torch.Tensor:
            result = call(inplace, s)
            assert result is s.input, "the in-place form returned another tensor"
            return s.input

        same_outcome(op, dtype, f"sample {n} in place", s, m, written)
    return ran


def wrong(shape: torch.Size) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + 1) if shape else (2,)


def check_out(op: OpInfo, dtype: torch.dtype, limit: int) -> int:
    """out= of the right size, of a wrong one, and with the right size's elements apart in memory."""
    ran = 0
    for n, (s, m) in enumerate(samples(op, dtype, limit)):
        try:
            plain = call(op, s)
        except Exception:
            continue
        if not tensors(plain) or any(t.layout != torch.strided for t in tensors(plain)):
            continue
        ran += 1
        makers: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
            "the right size": lambda t, device: torch.zeros(t.shape, dtype=t.dtype, device=device),
            "a wrong size": lambda t, device: torch.zeros(wrong(t.shape), dtype=t.dtype, device=device),
            "strides": lambda t, device: torch.zeros(*t.shape, 2, dtype=t.dtype, device=device)[..., 0],
        }  # fmt: skip
        for what, make in makers.items():

            def written(s: SampleInput, device: str, make: Any = make) -> Any:
                out = tree(lambda t: make(t, device), plain)  # noqa: B023
                call(op, s, out=out)
                return out

            same_outcome(op, dtype, f"sample {n}, out= of {what}", s, m, written)
    return ran


def check_errors(op: OpInfo) -> int:
    ran = 0
    seed(0)
    wrong = []
    for n, error in enumerate(op.error_inputs("cpu")):
        s = error.sample_input
        m = moved(s)
        _, refused, text = outcome(lambda: call(op, s))  # noqa: B023
        if not refused:
            continue
        ran += 1
        _, m_refused, m_text = outcome(lambda: call(op, m))  # noqa: B023
        if m_refused is not refused:
            got = f"{m_refused.__name__} ({m_text[:200]})" if m_refused else "no error"
            wrong.append(f"error input {n}: {got}, the CPU {refused.__name__} ({text[:200]})")
    assert not wrong, "\n".join(wrong)
    return ran


@contextlib.contextmanager
def eager_mode(mode: torch.tpu.EagerMode) -> Iterator[None]:
    before = torch.tpu.eager_mode
    torch.tpu.set_eager_mode(mode)
    try:
        yield
    finally:
        torch.tpu.set_eager_mode(before)


def libtpu_installed() -> bool:
    return importlib.util.find_spec("libtpu") is not None
