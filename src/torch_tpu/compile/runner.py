# SPDX-License-Identifier: Apache-2.0
"""Runs ATen graphs as programs: a graph is traced once on placeholder tensors, through the same kernels as eager;
what can't be part of a program runs between two."""

import logging
import operator
import re
import threading
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_tpu import _C
from torch_tpu.compile import control_flow
from torch_tpu.compile.buckets import Bucketed, Policy, Symbols
from torch_tpu.compile.checkpoints import Checkpoints

log = logging.getLogger(__name__)

Boxed = Callable[[list[Any]], list[Any]]  # AOTAutograd's convention: takes a list and clears it


class Runner:
    """One ATen graph, called in AOTAutograd's boxed convention.

    A program is compiled at the first call; inputs of another shape, dtype or view geometry get one of their own.
    Numbers among the inputs are part of the program, but for sizes that `policy` pads. `host`: names of the nodes that
    are no part of a program from the start; others are found when a trace fails there.
    """

    def __init__(self, gm: GraphModule, host: Collection[str], options: dict[str, Any], policy: Policy):
        self.gm, self.options, self.policy = gm, options, policy
        self.host = {node for node in gm.graph.nodes if node.name in host}
        self.cutting = threading.Lock()
        self.run = _pieces(gm, self.host, options, policy) if self.host else whole(gm, options, policy)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        tried = self.run
        try:
            return tried(inputs)
        except _NotCaptured as failure:
            with self.cutting:
                if self.run is tried:
                    self.host.add(failure.node)
                    self.run = _pieces(self.gm, self.host, self.options, self.policy)
        return self(inputs)


def whole(gm: GraphModule, options: dict[str, Any], policy: Policy) -> Boxed:
    """The graph as a program for each kind of arguments."""
    exact = _C.CompiledGraph(_Trace(gm), _spelled(options))
    symbols = Symbols(gm)
    return Bucketed(symbols, _Trace(gm), exact, policy, _spelled(options)) if symbols.known else exact


def _spelled(options: dict[str, Any]) -> list[tuple[str, Any]]:
    """XLA takes a bool by its name; as an argument of C++ it would become a number."""
    return [(name, str(value) if isinstance(value, bool) else value) for name, value in options.items()]


class _NotCaptured(Exception):
    """`node` did what a program can't express."""

    def __init__(self, node: Node, why: str):
        super().__init__(f"{node.target} at {user_line(node)}: {why}")
        self.node = node


class _Trace:
    """Runs the graph on placeholders. Several threads may, each with an interpreter of its own."""

    def __init__(self, gm: GraphModule):
        self.gm = gm

    def __call__(self, arguments: list[Any]) -> list[Any]:
        interpreter = _Interpreter(self.gm)
        log.info("a graph of %d nodes is traced for a program", len(self.gm.graph.nodes))
        try:
            outputs = interpreter.run(*arguments, enable_io_processing=False)
        except Exception:
            if interpreter.failed is None:
                raise
            node, cause, why = interpreter.failed
        else:
            return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        report(node, why, cause)
        raise _NotCaptured(node, why) from cause


class _Interpreter(torch.fx.Interpreter):
    """Runs node by node, and knows where it was when one failed."""

    failed: tuple[Node, Exception, str] | None = None

    def __init__(self, gm: GraphModule):
        super().__init__(gm)
        self.checkpoints = Checkpoints(gm)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def fetch(used: Node) -> Any:
            return self.checkpoints.argument(n, used, self.env[used])

        return torch.fx.node.map_arg(n.args, fetch), torch.fx.node.map_arg(n.kwargs, fetch)

    def run_node(self, n: Node) -> Any:
        try:
            value = super().run_node(n)
            self.checkpoints.made(n, value)
            return value
        except Exception as error:
            if n.op == "call_function":
                self.failed = n, error, str(error).split("\n")[0]
            raise

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten.view.default:
            # A slice that was saved for the backward comes back contiguous, where its view needed the strides.
            return args[0].reshape(args[1])
        replaced = control_flow.RANDOM.get(target)
        return replaced(*args, **kwargs) if replaced else super().call_function(target, args, kwargs)


def report(node: Node, reason: str, cause: Exception) -> None:
    """Warns that `node` runs outside of the program, or raises, as TORCH_TPU_CPU_FALLBACK says."""
    text = f"{node.target} at {user_line(node)} can't be part of a compiled program"
    policy = _C.cpu_fallback()
    if policy == "error":
        raise NotImplementedError(f"{text}: {reason}") from cause
    if policy != "allow":
        warnings.warn(f"{text} and runs by itself, between two programs: {reason}", stacklevel=2)


def user_line(node: Node) -> str:
    """Where in the user's code the node comes from, such as "model.py:25"."""
    found = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    return ":".join(found[-1]) if found else "an unknown line"


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def host_nodes(gm: GraphModule) -> set[Node]:
    """Collectives, and what computes on the CPU or copies from there: numbers (rank 0) may be operands of a program."""
    host = set()
    for node in gm.graph.nodes:
        source = node.args[0] if node.target is operator.getitem else node
        if node.op != "call_function" or source.target in control_flow.RANDOM:  # its state is the device's
            continue
        if getattr(source.target, "namespace", "") == "_c10d_functional":
            host.add(node)
            continue
        made = _tensors(node.meta.get("val"))
        given = [t for n in node.all_input_nodes for t in _tensors(n.meta.get("val"))]
        if any(t.device.type == "cpu" for t in made) or any(t.device.type == "cpu" and t.dim() > 0 for t in given):
            host.add(node)
    return host


def _changed(node: Node) -> list[Node]:
    """The arguments that the node writes to."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    values = [node.args[i] if i < len(node.args) else node.kwargs.get(a.name) for i, a in enumerate(schema.arguments)]
    leaves = [torch.utils._pytree.tree_leaves(v) for v, w in zip(values, written, strict=True) if w]
    return [n for some in leaves for n in some if isinstance(n, Node)]


def _readers(node: Node) -> list[Node]:
    """Who uses the node, itself or by way of a view."""
    found = []
    for user in node.users:
        found.append(user)
        if getattr(user.target, "is_view", False) or user.target is operator.getitem:
            found += _readers(user)
    return found


def _levels(gm: GraphModule, host: set[Node]) -> dict[Node, int]:
    """Even levels are programs, odd ones eager calls: as few of them as what depends on what allows."""
    levels: dict[Node, int] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        before = list(node.all_input_nodes)
        for changed in _changed(node):
            before += [reader for reader in _readers(changed) if reader is not node]
        for used in node.all_input_nodes:  # after what changed it
            before += [user for user in used.users if user is not node and used in _changed(user)]
        level = max((levels[n] for n in before if n in levels), default=-1 if node in host else 0)
        levels[node] = level if level % 2 == (node in host) else level + 1
    return levels


def _pieces(gm: GraphModule, host: set[Node], options: dict[str, Any], policy: Policy) -> Boxed:
    """The graph cut before and after the `host` nodes, which run as eager calls."""
    from torch.fx.passes.split_module import split_module

    host = host | {user for node in host for user in node.users if user.target is operator.getitem}
    part = _levels(gm, host)
    fixed = [n for n in gm.graph.nodes if n not in part and n.op != "output"]
    last = gm.graph.output_node()
    for node in [*fixed, *sorted(part, key=part.__getitem__)]:  # sorting is stable
        last.prepend(node)
    eager = {f"submod_{part[node]}" for node in host}
    split = split_module(gm, None, lambda node: part[node], keep_original_order=True)
    for name, child in list(split.named_children()):
        if name.startswith("submod_"):
            setattr(split, name, _Eager(child) if name in eager else _Piece(child, options, policy))

    def run(inputs: list[Any]) -> list[Any]:
        arguments = list(inputs)
        inputs.clear()
        with torch.no_grad():
            outputs = split(*arguments)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]

    return run


class _Piece(torch.nn.Module):
    """A part of a graph that is a program, called as the module it was."""

    def __init__(self, gm: GraphModule, options: dict[str, Any], policy: Policy):
        super().__init__()
        self.single = not isinstance(gm.graph.output_node().args[0], (tuple, list))
        self.program = Runner(gm, (), options, policy)

    def forward(self, *arguments: Any) -> Any:
        outputs = self.program(list(arguments))
        return outputs[0] if self.single else tuple(outputs)


class _Eager(torch.nn.Module):
    """A part of a graph that runs call by call, as the module it was; the interpreter adds the user's line to an
    error."""

    def __init__(self, gm: GraphModule):
        super().__init__()
        self.gm = gm

    def forward(self, *arguments: Any) -> Any:
        return torch.fx.Interpreter(self.gm).run(*arguments, enable_io_processing=False)
