# SPDX-License-Identifier: Apache-2.0
"""Eager modes, and what has run."""

import enum
from typing import NamedTuple

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
    """Sets metrics(), fallback_stats() and compile_report() back to nothing."""
    _C.reset_metrics()


class Compilation(NamedTuple):
    """A program that this process compiled, or loaded from disk."""

    name: str  # of the operator, or of the fused graph
    reason: str
    line: str  # "model.py:25"
    seconds: float
    from_disk: bool

    def __str__(self) -> str:
        verb = "loaded" if self.from_disk else "compiled"
        at = f" at {self.line}" if self.line else ""
        return f"{verb} {self.name} in {self.seconds * 1e3:.0f} ms{at}: {self.reason}"


class CompileReport(list[Compilation]):
    """The latest compilations, oldest first; printed, a line each and their sum."""

    dropped = 0  # older ones that are not kept

    def __str__(self) -> str:
        compiled = [c for c in self if not c.from_disk]
        total = (
            f"{len(compiled)} compiled in {sum(c.seconds for c in compiled):.1f} s, {len(self) - len(compiled)} loaded"
        )
        if self.dropped:
            total += f"; {self.dropped} older ones are not kept"
        return "\n".join([*map(str, self), total])


def compile_report() -> CompileReport:
    """What was compiled since the start or `reset_metrics()`, and why; `print` shows it."""
    entries, dropped = _C.compile_report()
    report = CompileReport(Compilation(*entry) for entry in entries)
    report.dropped = dropped
    return report
