# SPDX-License-Identifier: Apache-2.0
"""How many programs the process has, and a bound on them."""

import torch

from torch_tpu import _C


def needed() -> int:
    """So far, compiled or from disk."""
    metrics = torch.tpu.metrics()
    return metrics["programs_compiled"] + metrics["programs_from_disk"]


def bound() -> None:
    """Unloads all when they are many: each takes memory maps, of which a process has some 65,000."""
    if _C.loaded_programs() > 4000:
        torch.tpu.synchronize()
        _C.unload_programs()
