# SPDX-License-Identifier: Apache-2.0
"""torch_tpu.aot.compile: from PyTorch code to a compiled program and its report."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.aot import _client
from torch_tpu.aot._report import LoopTime, Report, describe, known_seconds
from torch_tpu.aot.chips import parse_topology

OptimizerLike = torch.optim.Optimizer | Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def compile(
    module_or_function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    topology: str = "TPU7x:2x2x1",
    backward: bool = False,
    optimizer: OptimizerLike | None = None,
    wait: float = _client.WAIT_SECONDS,
) -> Report:
    """Compiles a module or function for one device of a TPU topology that need not be present.

    Tensors among the arguments, parameters and buffers stand for their sizes, strides and dtypes alone:
    they may be on the meta device, the CPU or `tpu`, and are neither copied nor changed.

    Args:
      module_or_function: an nn.Module, or a function of tensors. What it calls is traced operator by
        operator as eager PyTorch would launch it, and becomes one program.
      args, kwargs: its arguments.
      topology: by the compiler's names, such as "TPU7x:2x2x1", "v6e:2x2", "v5e:2x2", "v5p:2x2x1".
      backward: also the gradients of every parameter, and of every argument that requires one. A result
        that is not a scalar gets its gradient as one more input.
      optimizer: an optimizer class, a function from parameters to an optimizer, or an optimizer of the
        module's parameters: the program is then a whole training step (forward, backward, update) in
        its steady state, with parameters and optimizer state updated in place. The result must be a scalar.
      wait: seconds to wait for another process that uses the compiler.

    Returns a Report. A program too large for the device gives a report too, with `fits` False.

    Raises ValueError for a topology that doesn't exist; RuntimeError if libtpu is not installed or the
    code reads a value of a tensor; CompileError if the compiler refuses the program; CompilerBusy.
    """
    chip, topology = parse_topology(topology)
    _client.library()  # the absence of the compiler shows before the work
    if not isinstance(args, tuple):
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    program = trace(module_or_function, args, kwargs or {}, chip.name, backward or optimizer is not None, optimizer)
    try:
        reply = _client.compiler.compile(program.text, topology, hlo=True, serialized=True, wait=wait)
    except _client.OutOfDeviceMemory as error:
        return describe(program, chip, topology, None, str(error))
    loops = _loop_seconds(program, topology, wait)
    return describe(program, chip, topology, reply, loops=loops)


def _loop_seconds(program: "Traced", topology: str, wait: float) -> LoopTime:
    """The time that the compiler's figure leaves out: each pass of a loop after the first, by the figure of a
    pass as a program of its own."""
    total = LoopTime()
    once: dict[str, float] = {}  # seconds of a pass, with the loops in it once
    extra = [0.0] * len(program.loops)  # of all passes of a loop beyond one of each of its own
    # Inner loops come after the loops around them.
    for i in reversed(range(len(program.loops))):
        around, trips, body = program.loops[i]
        if not trips:
            total.unknown += 1
            continue
        if body not in once:
            try:
                reply = _client.compiler.compile(body, topology, hlo=False, serialized=False, wait=wait)
                once[body] = known_seconds(reply["cost"].get("optimal_seconds", math.nan))
            except _client.CompileError:
                once[body] = math.nan
        if math.isnan(once[body]):
            total.unknown += 1
            continue
        total.counted += 1
        # extra[i] holds what the loops inside one pass add to it.
        added = trips * (once[body] + extra[i]) - once[body]
        if around < 0:
            total.seconds += added
        else:
            extra[around] += added
    return total


@dataclass
class Traced:
    """A program before it is compiled."""

    text: str
    name: str
    inputs: list[tuple[str, str]]  # name and type, such as ("weight", "bf16[8,8]")
    outputs: list[str]
    donated: int
    product_flops: (
        float  # of matrix products and convolutions, bodies of loops as often as they run where that is known
    )
    wide_flops: float  # of these in float32 at the highest precision
    loops: list[tuple[int, float, str]]  # the loop around (-1: none), passes (0: unknown), one pass as a program
    choices: list[tuple[str, str, str]] = field(default_factory=list)


class _Inputs:
    """Placeholders of one trace, one for each tensor of the user's."""

    def __init__(self, trace: Any):
        self.trace = trace
        self.names: list[str] = []
        self._made: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if id(tensor) in self._made:
            return self._made[id(tensor)]
        made = self.trace.input(tensor.detach())
        self.names.append(name)
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            made.requires_grad_()
        self._made[id(tensor)] = made
        return made


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    generation: str,
    backward: bool,
    optimizer: OptimizerLike | None,
) -> Traced:
    """The program of a call, as `compile` describes it, without the compiler."""
    module = function if isinstance(function, torch.nn.Module) else None
    if optimizer is not None and module is None:
        raise TypeError("torch_tpu.aot.compile: an optimizer needs a module, whose parameters it updates")
    state = _optimizer_state(module, optimizer, generation) if optimizer is not None else []
    name = type(function).__name__ if module is not None else getattr(function, "__name__", "program")
    with _C.Trace(generation) as tracing:
        inputs = _Inputs(tracing)
        parameters = {n: inputs.of(p, n) for n, p in (module.named_parameters() if module else ())}
        buffers = {n: inputs.of(b, n) for n, b in (module.named_buffers() if module else ())}

        def placed(path: Any, leaf: Any, root: str) -> Any:
            return inputs.of(leaf, root + pytree.keystr(path)) if isinstance(leaf, torch.Tensor) else leaf

        args = pytree.tree_map_with_path(lambda path, leaf: placed(path, leaf, "args"), args)
        kwargs = pytree.tree_map_with_path(lambda path, leaf: placed(path, leaf, "kwargs"), kwargs)
        with torch.set_grad_enabled(backward):
            # Libraries ask torch.compiler.is_compiling() before they read a value of a tensor.
            with torch.compiler._compile_session_context():
                if module is not None:
                    result = torch.func.functional_call(module, {**parameters, **buffers}, args, kwargs)
                else:
                    result = function(*args, **kwargs)
            outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            _check_on_device(outputs)
            if backward:
                _run_backward(outputs, inputs, optimizer is not None)
        leaves = [*parameters.values(), *(t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))]
        gradients = {id(t): t.grad for t in leaves if t.grad is not None}
        kept = [t.detach() for t in outputs]
        if optimizer is not None:
            trainable = [p for p in parameters.values() if p.requires_grad]
            update = _optimizer_for(optimizer, module, parameters)
            _restore_state(update, trainable, state, inputs)
            update.step()
        else:
            kept += gradients.values()
        traced = tracing.finish(kept, _identifier(name))
        del result, outputs, gradients, kept, leaves
    # Parameters that no result needs are left out of the program.
    names = [inputs.names[i] if i >= 0 else "(random state or constant)" for i in traced["input_of"]]
    return Traced(
        text=traced["text"],
        name=name,
        inputs=list(zip(names, traced["inputs"], strict=True)),
        outputs=traced["outputs"],
        donated=traced["donated"],
        product_flops=traced["product_flops"],
        wide_flops=traced["wide_flops"],
        loops=traced["loops"],
        choices=_C.target_choices(generation),
    )


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    return text if text[:1].isalpha() else f"program_{text}"


def _check_on_device(outputs: list[torch.Tensor]) -> None:
    for i, t in enumerate(outputs):
        if t.device.type != "tpu":
            raise RuntimeError(
                f"torch_tpu.aot.compile: result {i} is on {t.device}, not computed from the arguments on the device; "
                "make tensors on the device of the arguments"
            )


def _run_backward(outputs: list[torch.Tensor], inputs: _Inputs, scalar: bool) -> None:
    roots = [t for t in outputs if t.requires_grad]
    if not roots:
        raise RuntimeError("torch_tpu.aot.compile: no result requires a gradient, so there is no backward")
    if scalar and (len(roots) != 1 or roots[0].numel() != 1):
        raise RuntimeError(
            f"torch_tpu.aot.compile: a training step needs one scalar to minimise, the result is "
            f"{', '.join(str(tuple(t.shape)) for t in roots)}"
        )
    seeds = [
        None if t.numel() == 1 else inputs.of(torch.empty_like(t, device="meta"), f"gradient of result {i}")
        for i, t in enumerate(roots)
    ]
    torch.autograd.backward(roots, seeds)


def _optimizer_for(
    optimizer: OptimizerLike, module: torch.nn.Module, parameters: dict[str, torch.Tensor]
) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer([p for p in parameters.values() if p.requires_grad])
    placed = {id(p): parameters[n] for n, p in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        unknown = [p for p in group["params"] if id(p) not in placed]
        if unknown:
            raise ValueError("torch_tpu.aot.compile: the optimizer has parameters that are not the module's")
        groups.append({**group, "params": [placed[id(p)] for p in group["params"]]})
    return type(optimizer)(groups, **optimizer.defaults)


def _optimizer_state(
    module: torch.nn.Module, optimizer: OptimizerLike, generation: str
) -> list[dict[str, tuple[str, Any]]]:
    """What the optimizer keeps for each trainable parameter after its first step: tensors of the device
    as ("tensor", a meta tensor), the rest as ("value", it)."""
    with _C.Trace(generation) as tracing:
        inputs = _Inputs(tracing)
        parameters = {n: inputs.of(p, n) for n, p in module.named_parameters()}
        trainable = [p for p in parameters.values() if p.requires_grad]
        for p in trainable:
            p.grad = tracing.input(p.detach())
        update = _optimizer_for(optimizer, module, parameters)
        update.step()

        def kept(value: Any) -> tuple[str, Any]:
            if isinstance(value, torch.Tensor) and value.device.type == "tpu":
                return "tensor", torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return "value", value

        return [{k: kept(v) for k, v in update.state.get(p, {}).items()} for p in trainable]


def _restore_state(
    update: torch.optim.Optimizer,
    trainable: Iterable[torch.Tensor],
    state: list[dict[str, tuple[str, Any]]],
    inputs: _Inputs,
) -> None:
    for i, (p, entries) in enumerate(zip(trainable, state, strict=True)):
        for key, (kind, value) in entries.items():
            if kind == "tensor":
                value = inputs.of(value, f"optimizer.state[{i}].{key}")
            update.state[p][key] = value
