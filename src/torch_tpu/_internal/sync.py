# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

import torch

from torch_tpu.tpu import _device


def synchronize(tensors: Iterable[torch.Tensor] | torch.Tensor | None = None, wait: bool = True) -> None:
    """Waits for the devices of `tensors`, or for the current one. Without `wait` there is nothing
    to do in the modes that launch at once."""
    if not wait:
        return
    if tensors is None:
        return _device.synchronize()
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    for index in sorted({t.get_device() for t in tensors if t.device.type == "tpu"}):
        _device.synchronize(index)
