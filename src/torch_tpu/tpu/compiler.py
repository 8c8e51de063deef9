# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.compiler`: XLA's options for functions that torch.compile compiles, and the memory their programs take."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_tpu import _C

__all__ = ["ProgramMemory", "custom_compiler_options", "memory_report"]


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Context manager or decorator: functions that are first called inside are compiled with these XLA options,
    such as {"xla_cpu_enable_fast_math": True}, as with torch.compile's `options=`, which win. Not for eager calls."""
    from torch_tpu.compile import backend

    token = backend.compiler_options.set({**backend.compiler_options.get(), **options})
    try:
        yield
    finally:
        backend.compiler_options.reset(token)


@dataclass(frozen=True)
class ProgramMemory:
    """What one program takes, in bytes, by the compiler's own count. `peak`: what it holds at most while it runs;
    outputs in the memory of donated arguments (`aliased`) count once."""

    name: str
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int


@contextlib.contextmanager
def memory_report() -> Iterator[list[ProgramMemory]]:
    """Gives a list that holds, when the block is left, the compiled functions' programs that were made in it, in order:
    a first call, with its backward."""
    report: list[ProgramMemory] = []
    before = max((row["number"] for row in _C.program_memory()), default=-1)
    yield report
    for row in _C.program_memory():
        if row.pop("number") > before and row["name"] == "tpu::compiled":
            report.append(ProgramMemory(**row))
