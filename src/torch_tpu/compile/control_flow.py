# SPDX-License-Identifier: Apache-2.0
"""PyTorch's higher-order operators on tpu tensors: one StableHLO `if` or `while` each in a program, and
PyTorch's own loops in eager."""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.cond import cond_op, cond_op_dense
from torch._higher_order_ops.scan import scan_op, scan_op_dense
from torch._higher_order_ops.while_loop import while_loop_dense, while_loop_op
from torch._prims import rng_prims

from torch_tpu import _C


def _cond(pred: Any, true_fn: Callable, false_fn: Callable, operands: Any) -> Any:
    if not _C.is_capturing() or not isinstance(pred, torch.Tensor):
        return cond_op_dense(pred, true_fn, false_fn, operands)
    tensors, rebuild = _split(operands)
    return tuple(_C.captured_if(pred, lambda *t: true_fn(*rebuild(t)), lambda *t: false_fn(*rebuild(t)), tensors))


def _while_loop(
    cond_fn: Callable, body_fn: Callable, carried: Any, additional: Any, *, mutated_arg_indices: str = ""
) -> Any:
    if not _C.is_capturing():
        return while_loop_dense(cond_fn, body_fn, carried, additional, mutated_arg_indices=mutated_arg_indices)
    if any(not isinstance(x, torch.Tensor) for x in carried):
        raise NotImplementedError("while_loop that carries a Python number")
    return tuple(
        _C.captured_while(list(carried), lambda *s: cond_fn(*s, *additional), lambda *s: body_fn(*s, *additional))
    )


def _scan(combine_fn: Callable, init: Any, xs: Any, additional_inputs: Any) -> Any:
    if not _C.is_capturing() or not xs or xs[0].shape[0] == 0:
        return scan_op_dense(combine_fn, init, xs, additional_inputs)
    # Tensors from outside are carried along, so that the body can be tried on its own.
    given, rebuild = _split(additional_inputs)
    carried = len(init)

    def body(*state: Any) -> Any:
        own, rest = state[:carried], state[carried:]
        extra, rows = rest[: len(given)], rest[len(given) :]
        out = list(combine_fn(*own, *rows, *rebuild(extra)))
        return [*out[:carried], *extra, *out[carried:]]

    out = _C.captured_scan([*init, *given], list(xs), body)
    return tuple([*out[:carried], *out[carried + len(given) :]])


def _split(values: Any) -> tuple[list[torch.Tensor], Callable]:
    """The tensors among `values`, and a function that puts others in their places."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]

    def rebuild(given: Any) -> list[Any]:
        rest = iter(given)
        return [next(rest) if isinstance(v, torch.Tensor) else v for v in values]

    return tensors, rebuild


def _run_and_save(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _C.captured_random_state(), op(*args, **kwargs)


def _run_with(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    tensors, rebuild = _split(leaves)
    single = []

    def function(*given: Any) -> Any:
        a, k = torch.utils._pytree.tree_unflatten(rebuild(given), spec)
        out = op(*a, **k)
        single.append(isinstance(out, torch.Tensor))
        return out

    out = _C.captured_with_random_state(state, function, tensors)
    return out[0] if single[0] else tuple(out)


# How a checkpoint's random operators are run anew in the backward: PyTorch has these for its own devices.
RANDOM = {rng_prims.run_and_save_rng_state: _run_and_save, rng_prims.run_with_rng_state: _run_with}


def register() -> None:
    for op, implementation in ((cond_op, _cond), (while_loop_op, _while_loop), (scan_op, _scan)):
        if DispatchKey.PrivateUse1 not in op.py_kernels:
            op.py_impl(DispatchKey.PrivateUse1)(implementation)
    # flex_attention names the devices it takes; its plain form, which the graph is captured from, runs on any.
    from torch.nn.attention import flex_attention

    known = flex_attention._validate_device
    if not hasattr(known, "__wrapped__"):

        def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if query.device.type != "tpu":
                known(query, key, value)

        validate.__wrapped__ = known
        flex_attention._validate_device = validate


register()
