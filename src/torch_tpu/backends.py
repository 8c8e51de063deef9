# SPDX-License-Identifier: Apache-2.0
"""`torch.backends.tpu`."""

from torch_tpu import _C

__all__ = ["is_available", "is_built"]


def is_built() -> bool:
    return True


def is_available() -> bool:
    return _C.is_available()
