# SPDX-License-Identifier: Apache-2.0
"""Eager modes, and what has run."""

import enum

from torch_tpu import _C


class EagerMode(enum.Enum):
    """Where eager operators are cut into programs."""

    DEFER_NEVER = 0  # after each operator, launched without waiting
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1  # waits for each: an error is raised at its own line
    DEFER_AND_FUSE = 2  # collected, and fused where a value is needed


def set_eager_mode(mode: EagerMode) -> None:
    """Sets the process's mode; `torch.tpu.eager_mode` reads it."""
    _C.set_eager_mode(EagerMode(mode).value)


def fallback_stats() -> dict[str, int]:
    """How often each operator ran on the CPU because the device has no kernel for it."""
    return _C.fallback_stats()


def metrics() -> dict[str, int | float]:
    """Counts since the start: launches, plans, programs compiled or found on disk, compile seconds."""
    return _C.counters()


def reset_metrics() -> None:
    """Sets metrics() and fallback_stats() back to nothing."""
    _C.reset_metrics()
