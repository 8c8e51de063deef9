# SPDX-License-Identifier: Apache-2.0
"""Streams and events: PyTorch's own classes, which serve whatever the accelerator is."""

import contextlib
from collections.abc import Iterator

import torch

from torch_tpu.tpu._device import Device, index_of

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"]

Stream = torch.Stream
Event = torch.Event


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> torch.Stream:
    kind = torch._C._autograd.DeviceType.PrivateUse1
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=int(kind))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` current, and its device; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
    """Context manager: `stream` is current inside; None changes nothing."""
    if stream is None:
        yield None
    else:
        with stream:
            yield stream
