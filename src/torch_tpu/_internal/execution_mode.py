# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
from collections.abc import Iterator

from torch_tpu import _C
from torch_tpu.tpu._modes import EagerMode, set_eager_mode

__all__ = ["EagerMode", "eager_mode", "enable_cpu_fallback"]


@contextlib.contextmanager
def eager_mode(mode: EagerMode) -> Iterator[None]:
    """Context manager or decorator: operators inside run in this mode."""
    before = EagerMode(_C.eager_mode())
    set_eager_mode(mode)
    try:
        yield
    finally:
        set_eager_mode(before)


def enable_cpu_fallback(enabled: bool = True) -> None:
    """Whether an operator without a kernel may run on the CPU (TORCH_TPU_CPU_FALLBACK)."""
    os.environ["TORCH_TPU_CPU_FALLBACK"] = "warn" if enabled else "error"
