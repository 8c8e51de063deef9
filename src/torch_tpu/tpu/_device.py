# SPDX-License-Identifier: Apache-2.0
"""Devices: which there are, which is current, what they are."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from torch_tpu import _C

Device = torch.device | str | int | None


def index_of(device: Device) -> int:
    """The index of an existing device; None and a device without index are the current one."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        device = device.index
    if device is None:
        return _C.current_device()
    index = int(device)
    _C.check_device(index)
    return index


def is_available() -> bool:
    """Whether a plugin is there; opens none."""
    return _C.is_available()


def is_initialized() -> bool:
    return _C.is_initialized()


def init() -> None:
    """Opens the device, which its first use does too."""
    _C.init()


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes `device` the calling thread's current one. A negative index changes nothing."""
    if isinstance(device, int) and device < 0:
        return
    _C.set_device(index_of(device))


def synchronize(device: Device = None) -> None:
    """Waits for all work on `device`; raises what failed."""
    torch.accelerator.synchronize(index_of(device))


class device:
    """Context manager: `device` is current inside. None and negative indices change nothing."""

    def __init__(self, device: Device) -> None:
        unchanged = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if unchanged else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> Self:
        self.prev_idx = _C.current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of `obj`, a tensor or storage, is current inside."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.device.type == "tpu" else None)


@dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int  # bytes that tensors may take
    description: str
    id: int  # unique over all hosts
    is_virtual: bool  # a device that XLA's CPU plugin presents


def get_device_properties(device: Device = None) -> DeviceProperties:
    info = _C.device_info(index_of(device))
    kind = info.pop("kind")
    return DeviceProperties(name="virtual TPU (XLA CPU)" if info["is_virtual"] else kind, **info)


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """What torch.accelerator says of it: the dtypes that tensors on it may have."""
    return torch.accelerator.get_device_capability(index_of(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True
