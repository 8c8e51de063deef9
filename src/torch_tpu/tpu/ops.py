# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.ops`: what a TPU's programs want and PyTorch has no name for. Needs no process group.

Own operators get their shapes (for torch.compile) and gradients here; csrc/lowering/jagged.cc has their graphs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets
from torch.nn import functional as F

__all__ = [
    "align_jagged_to_multiple",
    "max_pool1d",
    "max_pool1d_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool3d",
    "max_pool3d_backward",
    "optimization_barrier",
    "ragged_dot",
    "ragged_dot_weight_grad",
    "strip_jagged_padding",
]

# ---- Rows in groups ----------------------------------------------------------------------------------------------


def ragged_dot(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """The rows of `lhs` [m, k] times the matrix of their group in `rhs` [g, k, n].

    Groups of `group_sizes` [g] rows follow each other; rows after the last group give 0. Sizes are read on the device:
    no host read, one program for all of them.
    """
    return torch.ops.tpu.ragged_dot(lhs, rhs, group_sizes)


def ragged_dot_weight_grad(lhs: torch.Tensor, grad_out: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """The gradient of `rhs` [g, k, n] in `ragged_dot`, from `lhs` [m, k] and that of the result [m, n]."""
    return torch.ops.tpu.ragged_dot_weight_grad(lhs, grad_out, group_sizes)


@torch.library.register_fake("tpu::ragged_dot")
def _(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    return lhs.new_empty(lhs.shape[0], rhs.shape[2])


@torch.library.register_fake("tpu::ragged_dot_weight_grad")
def _(lhs: torch.Tensor, grad_out: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    return lhs.new_empty(group_sizes.shape[0], lhs.shape[1], grad_out.shape[1])


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _ragged_dot_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    lhs, rhs, sizes = ctx.saved_tensors
    return (
        ragged_dot(grad, rhs.transpose(1, 2), sizes) if ctx.needs_input_grad[0] else None,
        ragged_dot_weight_grad(lhs, grad, sizes) if ctx.needs_input_grad[1] else None,
        None,
    )


def _weight_grad_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    lhs, grad_out, sizes = ctx.saved_tensors
    return (
        ragged_dot(grad_out, grad.transpose(1, 2), sizes) if ctx.needs_input_grad[0] else None,
        ragged_dot(lhs, grad, sizes) if ctx.needs_input_grad[1] else None,
        None,
    )


torch.library.register_autograd("tpu::ragged_dot", _ragged_dot_backward, setup_context=_save)
torch.library.register_autograd("tpu::ragged_dot_weight_grad", _weight_grad_backward, setup_context=_save)

# ---- Jagged tensors ----------------------------------------------------------------------------------------------


def align_jagged_to_multiple(
    nt: torch.Tensor, multiple: int = 128, padding_value: float | int | bool = 0.0
) -> torch.Tensor:
    """`nt` (layout torch.jagged) over values padded to a multiple of `multiple` rows; its offsets stay.

    Batches of about one length then share programs, and products fill whole tiles.
    """
    if multiple < 1:
        raise ValueError(f"multiple must be positive, got {multiple}")
    values = nt.values()
    missing = -values.shape[0] % multiple
    if not missing:
        return nt
    padding = values.new_full((missing, *values.shape[1:]), padding_value)
    return nested_view_from_values_offsets(torch.cat([values, padding]), nt.offsets())


def strip_jagged_padding(nt: torch.Tensor, valid_tokens: int | None = None) -> torch.Tensor:
    """`nt` without the rows after its last offset, as a view. Without `valid_tokens` that is read from the device."""
    offsets, values = nt.offsets(), nt.values()
    count = int(offsets[-1]) if valid_tokens is None else valid_tokens
    return nt if values.shape[0] == count else nested_view_from_values_offsets(values[:count], offsets)


# ---- Pooling with indices ----------------------------------------------------------------------------------------

_Size = int | Sequence[int]


def _max_pool(dims: int) -> Any:
    def max_pool(
        input: torch.Tensor,
        kernel_size: _Size,
        stride: _Size | None = None,
        padding: _Size = 0,
        dilation: _Size = 1,
        ceil_mode: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(maxima, their places in the flattened plane of the input)."""
        pool = getattr(F, f"max_pool{dims}d")
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)

    max_pool.__name__ = max_pool.__qualname__ = f"max_pool{dims}d"
    return max_pool


def _max_pool_backward(dims: int) -> Any:
    def max_pool_backward(grad_output: torch.Tensor, input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """The input's gradient: that of each maximum, added up at its place."""
        flat = torch.zeros_like(input).flatten(-dims)
        return flat.scatter_add(-1, indices.flatten(-dims), grad_output.flatten(-dims)).view(input.shape)

    max_pool_backward.__name__ = max_pool_backward.__qualname__ = f"max_pool{dims}d_backward"
    return max_pool_backward


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
max_pool1d_backward, max_pool2d_backward, max_pool3d_backward = map(_max_pool_backward, (1, 2, 3))

# ---- Barriers ----------------------------------------------------------------------------------------------------


def optimization_barrier(*tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The tensors as they are, all computed before anything that uses one: XLA moves and merges nothing across."""
    results = torch.ops.tpu.optimization_barrier(list(tensors))
    return results[0] if len(tensors) == 1 else tuple(results)


@torch.library.register_fake("tpu::optimization_barrier")
def _(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]


def _barrier_backward(ctx: Any, grads: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    given = [g for g in grads if g is not None]
    after = iter(torch.ops.tpu.optimization_barrier(given) if given else [])
    return [None if g is None else next(after) for g in grads]


torch.library.register_autograd("tpu::optimization_barrier", _barrier_backward)
