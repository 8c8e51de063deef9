# SPDX-License-Identifier: Apache-2.0
"""Graphs whose sizes vary: one program serves all sizes up to a bucket's; docs/compile.md has the policy."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from torch_tpu import _C

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Policy:
    """Which sizes get a program of their own: the first `exact` sets of them; then each is rounded up to a bucket."""

    buckets: tuple[int, ...] | None = None  # None: powers of two, from `smallest` on
    exact: int = 1
    smallest: int = 32

    @staticmethod
    def of(options: dict[str, Any]) -> "Policy":
        """Takes its own options out of `options`."""
        buckets, exact = options.pop("size_buckets", None), options.pop("exact_sizes", Policy.exact)
        if not isinstance(exact, int) or exact < 0:
            raise ValueError(f"torch.compile(backend='tpu'): exact_sizes must be a number of sizes, not {exact!r}")
        if buckets is None:
            return Policy(exact=exact)
        if any(not isinstance(n, int) or n < 1 for n in buckets):
            raise ValueError(f"torch.compile(backend='tpu'): size_buckets must be a list of sizes, not {buckets!r}")
        return Policy(tuple(sorted(buckets)), exact)

    def bucket(self, size: int, largest: int | None) -> int | None:
        """The size to pad to; None: as it is."""
        if self.buckets is not None:
            return next((n for n in self.buckets if n >= size), None)
        bucket = max(self.smallest, 1 << (size - 1).bit_length())
        return bucket if largest is None else max(size, min(bucket, largest))


@dataclass(frozen=True)
class Form:
    """The sizes of a node's value as PyTorch's tracing left them: a tensor's, or a number itself."""

    sizes: sympy.Expr | list[sympy.Expr]
    largest: dict[sympy.Symbol, int | None]  # of the symbols among them

    @staticmethod
    def of(value: Any) -> "Form | None":
        """None where nothing varies."""
        if isinstance(value, torch.SymInt):
            return Form(_expression(value), dict([_bound(value)] if _is_symbol(value) else []))
        if isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape):
            return Form([_expression(n) for n in value.shape], dict(_bound(n) for n in value.shape if _is_symbol(n)))
        return None


class Symbols:
    """The sizes among a graph's inputs, by the forms in its placeholders' metadata."""

    def __init__(self, gm: GraphModule):
        self.forms: dict[int, Any] = {}  # an input's position to its sizes, or to itself if it is a number
        self.sources: dict[sympy.Symbol, tuple[int, int | None]] = {}
        self.largest: dict[sympy.Symbol, int | None] = {}
        for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
            if (form := node.meta.get("form")) is None:
                continue
            self.forms[i] = form.sizes
            several = isinstance(form.sizes, list)
            for d, n in enumerate(form.sizes) if several else [(None, form.sizes)]:
                if isinstance(n, sympy.Symbol):
                    self.sources.setdefault(n, (i, d))
            self.largest.update(form.largest)
        free = set().union(*(_free(form) for form in self.forms.values()))
        self.known = bool(free) and free == set(self.sources)
        self.order = sorted(self.sources, key=str)
        self.tensors = [i for i, form in self.forms.items() if isinstance(form, list)]

    def read(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """The values of the symbols, in `order`."""
        found = []
        for symbol in self.order:
            i, d = self.sources[symbol]
            found.append(inputs[i] if d is None else inputs[i].shape[d])
        return tuple(found)

    def at(self, inputs: Sequence[Any], sizes: tuple[int, ...]) -> list[Any]:
        """Arguments of a trace in which the symbols have these values."""
        given = dict(zip(self.order, map(sympy.Integer, sizes), strict=True))
        out = list(inputs)
        for i, form in self.forms.items():
            if isinstance(form, list):
                out[i] = (inputs[i], [int(e.xreplace(given)) for e in form])
            else:
                out[i] = int(form.xreplace(given))
        return out

    def fit(self, inputs: Sequence[Any], sizes: tuple[int, ...]) -> bool:
        """Whether the inputs are as the symbols say: an operator's fake results may differ from its real ones."""
        return all(not isinstance(given, tuple) or list(given[0].shape) == given[1] for given in self.at(inputs, sizes))


def _expression(value: Any) -> sympy.Expr:
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value)


def _is_symbol(value: Any) -> bool:
    return isinstance(_expression(value), sympy.Symbol)


def _bound(value: torch.SymInt) -> tuple[sympy.Symbol, int | None]:
    """The symbol, and the largest it can be, if that is known."""
    symbol = _expression(value)
    upper = value.node.shape_env.var_to_range[symbol].upper
    return symbol, int(upper) if upper.is_Integer and upper < 2**31 else None


def _free(form: Any) -> set[sympy.Symbol]:
    return set().union(*(e.free_symbols for e in form)) if isinstance(form, list) else form.free_symbols


class _Program:
    """One program for all sizes up to a bucket's."""

    def __init__(
        self, room: tuple[int, ...], large: Any, samples: list[Any], tensors: list[int], options: list[tuple[str, Any]]
    ):
        self.padded = _C.PaddedProgram(large, samples)
        self.tensors = tensors  # positions among the inputs
        self.rooms = [self.padded.room(k) for k in range(len(tensors))]
        self.outputs, self.written = large.outputs, large.written
        self.fresh = large.results - len(large.written)
        self.run = _C.CompiledGraph(
            self._trace, options, f"the compiled graph for sizes up to {', '.join(map(str, room))}"
        )

    def _trace(self, arguments: list[torch.Tensor]) -> list[Any]:
        *tensors, integers, reals = arguments
        results = self.padded.emit(tensors, integers, reals)
        for k, i in enumerate(self.written):
            tensors[i].copy_(results[self.fresh + k])
        outputs: list[Any] = []
        for kind, *rest in self.outputs:
            if kind == "result":
                i, sizes, strides = rest
                outputs.append(results[i] if self.padded.packed[i] else _C.viewed(results[i], sizes, strides))
            else:
                outputs.append(None)
        return outputs

    def __call__(self, inputs: list[Any], at: "_Size") -> list[Any]:
        given = [inputs[i] for i in self.tensors]
        inputs.clear()
        padded = [t if room < 0 else _C.packed(t, room) for t, room in zip(given, self.rooms, strict=True)]
        results = self.run([*padded, at.integers, at.reals])
        for k, (kind, *rest) in enumerate(at.outputs):
            if kind == "constant":
                results[k] = rest[0]
            elif kind == "input":
                results[k] = given[rest[0]]
            elif kind == "view":
                i, size, stride, offset = rest
                results[k] = _C.viewed(given[i], size, stride, offset)
            elif kind == "result" and self.padded.packed[rest[0]]:
                results[k] = _C.viewed(results[k], rest[1], rest[2])
        return results


@dataclass
class _Size:
    """How one set of sizes is served."""

    program: _Program | None = None  # None: by a program of its own
    integers: Any = None
    reals: Any = None
    outputs: list[Any] = field(default_factory=list)


class Bucketed:
    """Calls a graph of varying sizes. `trace` runs it on placeholders, `exact` serves one set of sizes as it is."""

    VARIANTS = 3  # programs for one bucket, where numbers depend on sizes in ways the first samples don't tell apart

    def __init__(
        self,
        symbols: Symbols,
        trace: Callable[[list[Any]], list[Any]],
        exact: Callable[[list[Any]], list[Any]],
        policy: Policy,
        options: list[tuple[str, Any]],
    ):
        self.symbols, self.trace, self.exact, self.policy, self.options = symbols, trace, exact, policy, options
        self.known: dict[tuple[Any, ...], _Size] = {}
        self.sizes: dict[tuple[int, ...], None] = {}  # those met, in their order
        self.programs: dict[tuple[int, ...], list[_Program]] = {}
        self.refused: set[tuple[int, ...]] = set()
        self.lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        sizes = self.symbols.read(inputs)
        # An output may be a view of an input: how that lies matters.
        key = (sizes, *(inputs[i].stride() for i in self.symbols.tensors))
        known = self.known.get(key)
        if known is None:
            with self.lock:
                known = self.known.get(key) or self._serve(sizes, inputs)
                self.known[key] = known
                self.sizes.setdefault(sizes)
        return self.exact(inputs) if known.program is None else known.program(inputs, known)

    def _traced(self, inputs: list[Any], sizes: tuple[int, ...]) -> Any:
        return _C.TracedGraph(self.trace, self.symbols.at(inputs, sizes))

    def _serve(self, sizes: tuple[int, ...], inputs: list[Any]) -> _Size:
        if len(self.sizes | {sizes: None}) <= self.policy.exact:
            return _Size()
        bucket = self._bucket(sizes)
        if None in bucket or (bucket in self.refused and bucket not in self.programs):
            return _Size()
        if not self.symbols.fit(inputs, sizes):
            log.info("sizes %s get a program of their own: an input is not as PyTorch's tracing has it", sizes)
            return _Size()
        with torch.no_grad():
            own = self._traced(inputs, sizes)
            try:
                return self._padded(sizes, bucket, own, inputs)
            except _C.NotPadded as reason:
                log.info("sizes %s get a program of their own: %s", sizes, reason)
        return _Size()

    def _bucket(self, sizes: tuple[int, ...]) -> tuple[int | None, ...]:
        found = []
        for i, symbol in enumerate(self.symbols.order):
            constant = all(known[i] == sizes[i] for known in self.sizes)  # nothing is gained by padding it
            found.append(sizes[i] if constant else self.policy.bucket(sizes[i], self.symbols.largest[symbol]))
        return tuple(found)

    def _padded(self, sizes: tuple[int, ...], bucket: tuple[int, ...], own: Any, inputs: list[Any]) -> _Size:
        if own.random:
            self.refused.add(bucket)
            raise _C.NotPadded("random numbers are drawn for the true size")
        programs = self.programs.get(bucket, [])
        for program in programs:
            if [kind for kind, *_ in program.outputs] != [kind for kind, *_ in own.outputs]:
                continue
            try:
                return self._size(program, program.padded.numbers(own), own, inputs)
            except _C.NotPadded as reason:
                log.info("sizes %s, bucket %s: %s", sizes, bucket, reason)
        if len(programs) == self.VARIANTS or bucket in self.refused:
            raise _C.NotPadded("numbers that depend on the sizes in too many ways")
        others = [known for known in self.sizes if known not in (sizes, bucket)][-2:]
        samples = [own, *(self._traced(inputs, known) for known in others)]
        tensors = [i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)]
        # Where a bucket's size is that of something else too, the graph has another form there: one more is none.
        for room in (bucket, tuple(n if n in sizes else n + 1 for n in bucket)):
            try:
                program = _Program(room, self._large(inputs, room), samples, tensors, self.options)
                size = self._size(program, program.padded.numbers(own), own, inputs)
            except _C.NotPadded as error:
                reason = error
                continue
            self.programs.setdefault(bucket, []).append(program)
            log.info("sizes %s open the bucket %s", sizes, room)
            return size
        self.refused.add(bucket)
        raise reason

    def _large(self, inputs: list[Any], bucket: tuple[int, ...]) -> Any:
        try:
            return self._traced(inputs, bucket)
        except Exception as error:
            raise _C.NotPadded(f"the graph does not run at the bucket's sizes: {error}") from error

    def _size(self, program: _Program, numbers: tuple[list[int], list[float]], own: Any, inputs: list[Any]) -> _Size:
        device = next((t.device for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "tpu"), "tpu")
        integers = torch.tensor(numbers[0], dtype=torch.int64).to(device)
        reals = torch.tensor(numbers[1], dtype=torch.float64).to(device)
        return _Size(program, integers, reals, own.outputs)
