# SPDX-License-Identifier: Apache-2.0
"""How exactly float32 is computed."""

import contextlib
import enum
from collections.abc import Iterator

import torch

from torch_tpu import _C

__all__ = ["Precision", "allow_excess_precision", "precision"]


class Precision(enum.Enum):
    """Of float32 matrix products; the values are those of torch.set_float32_matmul_precision."""

    DEFAULT = "medium"  # XLA's default on a TPU: one bfloat16 pass
    HIGH = "high"  # three passes
    HIGHEST = "highest"  # float32, and PyTorch's default


@contextlib.contextmanager
def precision(value: Precision) -> Iterator[None]:
    """Context manager or decorator: matrix products inside have this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(Precision(value).value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def allow_excess_precision(allow: bool = True) -> Iterator[None]:
    """Context manager or decorator: programs compiled inside may skip roundings between operators."""
    before = _C.allow_excess_precision()
    _C.set_allow_excess_precision(bool(allow))
    try:
        yield
    finally:
        _C.set_allow_excess_precision(before)
