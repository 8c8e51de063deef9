# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.distributed`: what running on several devices or hosts needs beside torch.distributed.

`python -m torch.tpu.distributed` prints the variables that set_tpu_launch_env() sets, as lines for a shell.
"""

import functools
import itertools
import math
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = ["set_tpu_launch_env", "spmd_safe", "topology_aware_mesh", "window_num_stripes", "window_stripe_chunk_mb"]

F = TypeVar("F", bound=Callable[..., Any])

_MASTER_PORT = "29500"
_SLICE_PORT = 8471  # where the hosts of a slice find each other


def set_tpu_launch_env(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
    """Sets the variables that a job over TPU hosts needs, before its processes start; those already set stay.

    Reads TPU_WORKER_HOSTNAMES (the hosts, separated by commas), and TPU_WORKER_ID or JOB_COMPLETION_INDEX (which of
    them this one is). On one host none of them is needed.

    Args:
        nnodes: the number of hosts; checked against TPU_WORKER_HOSTNAMES.
        nproc_per_node: processes on each host, one a device. Default: the devices of the host; on several hosts
            TORCH_TPU_DEVICES_PER_HOST, or 8.

    Raises:
        ValueError: where the hosts are not known, `nnodes` is another number than theirs, or a number isn't positive.
    """
    for name, value in (("nnodes", nnodes), ("nproc_per_node", nproc_per_node)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    hosts = [host for host in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if nnodes is not None and hosts and nnodes != len(hosts):
        raise ValueError(f"nnodes is {nnodes}, but TPU_WORKER_HOSTNAMES names {len(hosts)} hosts: {','.join(hosts)}")
    index = os.environ.get("TPU_WORKER_ID") or os.environ.get("JOB_COMPLETION_INDEX")
    several = len(hosts) > 1 or (nnodes or 1) > 1
    if several and not hosts:
        raise ValueError("TPU_WORKER_HOSTNAMES must name the hosts of the job, separated by commas")
    if several and not index and "NODE_RANK" not in os.environ:
        raise ValueError("NODE_RANK, TPU_WORKER_ID or JOB_COMPLETION_INDEX must say which of the hosts this one is")
    if nproc_per_node is None:
        each = os.environ.get("TORCH_TPU_DEVICES_PER_HOST", "8")
        nproc_per_node = int(each) if several else max(1, torch.tpu.device_count())
    hosts = hosts or ["localhost"]
    addresses = [f"{host}:{_SLICE_PORT + i}" for host in hosts for i in range(nproc_per_node)]
    for name, text in {
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(addresses),
        "TORCH_TPU_XPROF_SESSION_ID": str(time.time_ns()),
        "NNODES": str(len(hosts)),
        "NPROC_PER_NODE": str(nproc_per_node),
        "NODE_RANK": index or "0",
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": _MASTER_PORT,
    }.items():
        os.environ.setdefault(name, text)


def spmd_safe(function: F) -> F:
    """Says that `function` runs alike on all ranks: the same operators, collectives, sizes and order.

    A collective ends a fused graph here with or without it, so that ranks which differ never wait for each other; what
    the function computes is the same.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def topology_aware_mesh(
    mesh_shape: tuple[int, ...],
    *,
    dcn_mesh_shape: tuple[int, ...] | None = None,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    """The ranks, int64 in `mesh_shape`, so that neighbours in the mesh are on devices near each other.

    The last dimension is the one that communicates most. Ranks on one host stay together in the last dimensions, and
    hosts in the order of their devices' ids. All ranks of the default group must call it.

    Args:
        mesh_shape: its product is the number of ranks.
        dcn_mesh_shape: how many parts of each dimension lie on different slices; they divide `mesh_shape`.
        allow_split_physical_axes, contiguous_submeshes: how a physical torus may be cut; hosts of virtual devices have
            none, so that both change nothing there.

    Raises:
        RuntimeError: without a default group, or where two ranks use one device.
        ValueError: where the shapes don't fit.
    """
    if not dist.is_initialized():
        raise RuntimeError("topology_aware_mesh needs a default process group: call init_process_group first")
    size = dist.get_world_size()
    if math.prod(mesh_shape) != size:
        raise ValueError(f"a mesh of shape {tuple(mesh_shape)} has {math.prod(mesh_shape)} places for {size} ranks")
    parts = dcn_mesh_shape or (1,) * len(mesh_shape)
    if len(parts) != len(mesh_shape) or any(n < 1 or m % n for m, n in zip(mesh_shape, parts, strict=False)):
        raise ValueError(f"dcn_mesh_shape {tuple(parts)} doesn't divide mesh_shape {tuple(mesh_shape)}")
    device = torch.tpu.current_device()
    places: list[Any] = [None] * size
    dist.all_gather_object(places, (os.uname().nodename, os.getpid(), device))
    if len(set(places)) != size:
        raise RuntimeError("two ranks use one device: each rank needs a process and a device of its own")
    # Hosts in the order of their first rank, on each its ranks in order.
    first: dict[str, int] = {}
    for rank, (host, *_) in enumerate(places):
        first.setdefault(host, rank)
    order = torch.tensor(sorted(range(size), key=lambda rank: (first[places[rank][0]], rank)))
    inner = [m // n for m, n in zip(mesh_shape, parts, strict=True)]
    # Slices outermost, then taken into their dimensions: [parts…, inner…] -> [part 0, inner 0, part 1, inner 1, …].
    count = len(mesh_shape)
    by_slice = order.reshape(*parts, *inner)
    turned = by_slice.permute(*itertools.chain(*((i, count + i) for i in range(count))))
    return turned.reshape(mesh_shape).contiguous()


class _Module(types.ModuleType):
    """Checks what is assigned to the two numbers."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("window_num_stripes", "window_stripe_chunk_mb") and (not isinstance(value, int) or value < 1):
            raise ValueError(f"torch.tpu.distributed.{name} must be a positive integer, got {value!r}")
        super().__setattr__(name, value)


# Of transfers between TPU chips that the TPU's own windows carry; no other transport reads them.
window_num_stripes = 4
window_stripe_chunk_mb = 1
sys.modules[__name__].__class__ = _Module


def _main() -> None:
    set_tpu_launch_env()
    for name in (
        "TORCH_TPU_SLICEBUILDER_ADDRESSES",
        "TORCH_TPU_XPROF_SESSION_ID",
        "NNODES",
        "NPROC_PER_NODE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ):
        print(f'{name}="{os.environ[name]}"')
    print(f"WORLD_SIZE={int(os.environ['NNODES']) * int(os.environ['NPROC_PER_NODE'])}")


if __name__ == "__main__":
    _main()
