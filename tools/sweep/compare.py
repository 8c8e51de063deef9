# SPDX-License-Identifier: Apache-2.0
"""A model's results and gradients on one device against another's."""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

TOLERANCE = 1e-4
# A tensor is scaled by its own largest element, or by this part of the largest of all where that is more:
# a gradient that is zero but for rounding has no scale of its own.
FLOOR = 1e-2
Tensors = dict[str, torch.Tensor]


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in what a model returned; objects of other kinds, such as caches, are passed over."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from tensors(part, f"{name}.{i}")


def step(model: torch.nn.Module, call: Callable[[], Any]) -> tuple[Tensors, Tensors]:
    """call() forward and backward: its results, and the gradient of each parameter, on the CPU.

    The loss is the model's own where it returns one, plus the weighted mean square of every floating result; with equal
    weights, what is normalised at the end would have no gradient.
    """
    model.zero_grad(set_to_none=True)
    found = dict(tensors(call()))
    loss = None
    for name, t in found.items():
        if t.requires_grad and t.numel():
            part = t.sum() if name.endswith(".loss") else torch.view_as_real(t) if t.is_complex() else t
            if part.dim():
                weight = torch.cos(torch.arange(part.numel(), dtype=torch.float32)).view(part.shape).to(part.device)
                part = (part.float().clamp(-1e4, 1e4) * (1 + weight / 2)).square().mean()
            loss = part if loss is None else loss + part
    if loss is not None:
        loss.backward()
    grads = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
    return {n: t.detach().cpu() for n, t in found.items()}, grads


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def difference(got: Tensors, want: Tensors, same_dtype: bool = True) -> tuple[float, str]:
    """The largest scaled difference, and the tensor it is in; infinite where tensors are missing or of other kinds."""
    if set(got) != set(want):
        return float("inf"), "only on one side: " + ", ".join(sorted(set(got) ^ set(want))[:3])
    worst, where = 0.0, ""
    peak = max((_peak(t) for t in want.values() if t.is_floating_point() or t.is_complex()), default=0.0)
    for name, a in want.items():
        b = got[name]
        if a.shape != b.shape or (same_dtype and a.dtype != b.dtype):
            return float("inf"), f"{name}: {tuple(b.shape)} {b.dtype} for {tuple(a.shape)} {a.dtype}"
        if not a.numel():
            continue
        if not (a.is_floating_point() or a.is_complex()):
            error = float(not torch.equal(a, b))
        else:
            a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
            same = (a == b) | (a.isnan() & b.isnan())
            gap = torch.where(same, 0, (a - b).abs())
            error = float("inf") if gap.isnan().any() else (gap.max() / max(_peak(a), FLOOR * peak, 1e-30)).item()
        if error > worst:
            worst, where = error, name
    return worst, where


def _peak(t: torch.Tensor) -> float:
    """The largest finite magnitude."""
    finite = t[t.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


class CpuRandom(TorchDispatchMode):
    """Random numbers come from the CPU's generator whatever the device, so that two devices draw the same."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # Attention has the tag for its dropout alone, and no CPU kernel.
        if torch.Tag.nondeterministic_seeded not in func.tags or "attention" in func.name():
            return func(*args, **kwargs)
        devices = [kwargs["device"]] if kwargs.get("device") is not None else []

        def to_cpu(a):
            if isinstance(a, torch.Tensor):
                devices.append(a.device)
                return a.detach().cpu()
            if isinstance(a, torch.Generator):
                return a if a.device.type == "cpu" else None
            return torch.device("cpu") if isinstance(a, torch.device) else a

        out = func(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
        written = [
            a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
        ]
        if written:
            written[0].copy_(out)
            return written[0]
        device = devices[0] if devices else torch.device("cpu")
        return tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, out)


class Subject:
    """A model and its inputs on the CPU, judged on `tpu`."""

    def __init__(self, model: torch.nn.Module, inputs: dict[str, Any]):
        self.model, self.inputs = model, inputs
        self.fresh = copy.deepcopy(model)  # some models keep tensors of the graph, which can't be copied
        self.want = self.run(model, inputs)
        self.random = difference(*(self.run(model, inputs, seed)[0] for seed in (0, 1)))[0] > 0

    def run(self, model: torch.nn.Module, inputs: dict[str, Any], seed: int = 0) -> tuple[Tensors, Tensors]:
        torch.manual_seed(seed)
        with CpuRandom() if getattr(self, "random", False) else contextlib.nullcontext():
            return step(model, lambda: model(**inputs))

    def check(self, model: torch.nn.Module, run: torch.nn.Module) -> dict[str, Any]:
        """Runs `run`, which is `model` on the device or a compiled form of it."""
        start = time.perf_counter()
        torch.tpu.reset_metrics()
        if self.random:
            self.want = self.run(self.model, self.inputs)
        inputs = tree_map(lambda t: t.to("tpu") if isinstance(t, torch.Tensor) else t, self.inputs)
        torch.manual_seed(0)
        with CpuRandom() if self.random else contextlib.nullcontext():
            got = step(model, lambda: run(**inputs))
        forward, where = difference(got[0], self.want[0])
        backward, where_grad = difference(got[1], self.want[1])
        out = {
            "forward": forward,
            "backward": backward,
            "seconds": round(time.perf_counter() - start, 1),
            "fallbacks": {n: c for n, c in torch.tpu.fallback_stats().items() if c},
        }
        if max(forward, backward) > TOLERANCE:
            out["where"] = where if forward > TOLERANCE else where_grad
            out |= self._in_float64()
        return out

    def _in_float64(self) -> dict[str, Any]:
        """Tells a fault from rounding that the model magnifies: `own`, how far the CPU's float32 is from its float64;
        `wide`, how far the device's float64 is from the CPU's, eager."""
        wider = functools.partial(tree_map, lambda t: t.double() if _is_float32(t) else t)
        inputs = wider(self.inputs)
        on_cpu = copy.deepcopy(self.fresh).cpu().double()
        try:
            want = self.run(on_cpu, inputs)
            own = max(difference(got, exact, same_dtype=False)[0] for got, exact in zip(self.want, want, strict=True))
            moved = tree_map(lambda t: t.to("tpu") if isinstance(t, torch.Tensor) else t, inputs)
            got = self.run(copy.deepcopy(self.fresh).double().to("tpu"), moved)
            return {"own": own, "wide": max(difference(a, b)[0] for a, b in zip(got, want, strict=True))}
        except Exception as error:  # has float32 in its code
            return {"wide_error": str(error)[:200]}


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Every parameter gets noise, so that no two are equal: a router of zeros would leave its choice open."""
    generator = torch.Generator().manual_seed(7)
    for p in model.parameters():
        if p.is_floating_point():
            p.add_(torch.randn(p.shape, generator=generator).to(p.dtype) * 0.02)
