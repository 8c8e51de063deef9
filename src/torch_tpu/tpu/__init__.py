# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu`: the device's own functions. What torch.accelerator also has does the same there.

A device is given as `torch.device`, string, index or None (the current one); one that does not
exist raises, whichever function is asked.
"""

import importlib
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu import amp
from torch_tpu.tpu._device import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.tpu._modes import (
    EagerMode,
    compile_report,
    fallback_stats,
    metrics,
    reset_metrics,
    set_eager_mode,
)
from torch_tpu.tpu._precision import Precision, allow_excess_precision, precision
from torch_tpu.tpu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_tpu.tpu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "EagerMode",
    "Event",
    "Precision",
    "Stream",
    "allow_excess_precision",
    "amp",
    "compile_report",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "fallback_stats",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "metrics",
    "precision",
    "reset_accumulated_memory_stats",
    "reset_metrics",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast("tpu", dtype=…)` takes."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return _C.in_forked_child()


def _lazy_init() -> None:
    init()


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint saves the generators' states only then
        return is_initialized()
    if name == "eager_mode":
        return EagerMode(_C.eager_mode())
    if name in ("compiler", "distributed", "ops", "profiler"):  # most programs don't need them
        return importlib.import_module(f"torch_tpu.tpu.{name}")
    if name == "default_generators":  # opens the device, so not at import
        return tuple(_C.default_generator(i) for i in range(device_count()))
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
