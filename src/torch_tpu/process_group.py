# SPDX-License-Identifier: Apache-2.0
"""The c10d backends of the device: `tpu_dist`, and `tpu`, its other name."""

import atexit
import functools
import os
import sys
from typing import Any

from torch_tpu import _C, dtensor

_EXIT_SECONDS = 10  # how long what was started last may take when the process ends


def register() -> None:
    """Makes both names known to torch.distributed; does nothing where it was not built."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return
    for name in ("tpu_dist", "tpu"):
        dist.Backend.register_backend(name, _creator(name), extended_api=True, devices=["tpu", "cpu"])
    dtensor.follow()


def _creator(name: str) -> Any:
    def create(options: Any, _: Any) -> Any:
        from torch.distributed import PrefixStore, ProcessGroupGloo

        # torchrun may keep its store when it starts the ranks anew: addresses from before are of processes that ended.
        store = PrefixStore(f"{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/", options.store)
        gloo = ProcessGroupGloo(
            PrefixStore("gloo/", store), options.group_rank, options.group_size, timeout=options.timeout
        )
        _drain_at_exit()
        milliseconds = max(1, round(options.timeout.total_seconds() * 1000))
        return _C.gloo_process_group(
            gloo, store, str(options.group_id), name, milliseconds, options.global_ranks_in_group
        )

    return create


@functools.cache
def _drain_at_exit() -> None:
    atexit.register(_drain)


def _drain() -> None:
    """What this rank gives to others leaves before the process does; after an exception nobody can rely on it."""
    failed = hasattr(sys, "last_value")
    _C.drain_process_groups(1000 if failed else 1000 * _EXIT_SECONDS)
