# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.profiler`: what the device's part of a `torch.profiler` profile holds. See docs/profiling.md."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch

from torch_tpu import _C

__all__ = ["TpuProfilerConfig", "trace"]


@dataclasses.dataclass(frozen=True)
class TpuProfilerConfig:
    """What is noted of the device while a profile is taken.

    python_lines: the line of the user's Python that made each launch; some microseconds a launch.
    transfers: copies between host and device, with their bytes.

    `with config:` holds for the profiles that begin inside.
    """

    python_lines: bool = True
    transfers: bool = True

    def __enter__(self) -> "TpuProfilerConfig":
        _active.append(self)
        _C.set_profile_options(self.python_lines, self.transfers)
        return self

    def __exit__(self, *_: Any) -> None:
        _active.pop()
        _C.set_profile_options(_active[-1].python_lines, _active[-1].transfers)


_active = [TpuProfilerConfig()]


@contextlib.contextmanager
def trace(
    folder: str | os.PathLike[str], config: TpuProfilerConfig | None = None, **options: Any
) -> Iterator[torch.profiler.profile]:
    """Profiles the block, host and device, and writes a trace into `folder`, for Perfetto, chrome://tracing and
    TensorBoard. `options` go to `torch.profiler.profile`; the profile itself is given to the block."""
    with config or contextlib.nullcontext():
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
        handler = torch.profiler.tensorboard_trace_handler(os.fspath(folder))
        with torch.profiler.profile(activities=activities, on_trace_ready=handler, **options) as profile:
            yield profile
