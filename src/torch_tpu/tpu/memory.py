# SPDX-License-Identifier: Apache-2.0
"""Memory of a device, by torch.accelerator's counts."""

from collections import OrderedDict
from typing import Any

import torch

from torch_tpu.tpu._device import Device, index_of

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def empty_cache() -> None:
    """Nothing to do: memory goes back as soon as no tensor needs it."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> "OrderedDict[str, Any]":
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: Device = None) -> int:
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes."""
    return torch.accelerator.get_memory_info(index_of(device))
