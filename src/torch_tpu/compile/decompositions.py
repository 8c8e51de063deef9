# SPDX-License-Identifier: Apache-2.0
"""PyTorch's Python decompositions as kernels of the device, captured into one program each."""

import functools

import torch

from torch_tpu import _C


@functools.cache
def _overload(name: str, overload: str):
    packet = getattr(torch.ops.aten, name.split("::")[1])
    return getattr(packet, overload or "default")


def _run(name: str, overload: str, *arguments):
    op = _overload(name, overload)
    positional, keywords = [], {}
    for declared, value in zip(op._schema.arguments, arguments, strict=True):
        if declared.kwarg_only:
            keywords[declared.name] = value
        else:
            positional.append(value)
    return torch._decomp.decomposition_table[op](*positional, **keywords)


def _wanted(op) -> bool:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return False
    name = op.name()
    if op.is_view or any(k in op.tags for k in (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)):
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return not any(has(name, key) for key in ("PrivateUse1", "CompositeImplicitAutograd", "CompositeExplicitAutograd"))


def register() -> None:
    """Registers every decomposition of an operator that is neither lowered nor a composite."""
    from torch_tpu.compile import control_flow  # noqa: F401 registers PyTorch's higher-order operators

    table = torch._decomp.decomposition_table
    _C._register_decompositions([op.name() for op in table if _wanted(op)], _run)
