# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of c10d backends, as far as they are for any backend."""

import functools
import os
import sys
import tempfile
import unittest
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks


@functools.cache
def suite() -> Any:
    os.environ.setdefault("BACKEND", "tpu_dist")
    os.environ.setdefault("WORLD_SIZE", "2")
    os.environ["TEMP_DIR"] = tempfile.gettempdir()
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the module parses them
    try:
        from torch.testing._internal.distributed import distributed_test
    finally:
        sys.argv = arguments

    class Case(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Case


# Part of a name -> why the test is not for this backend.
NOT_OURS = {
    "cuda": "needs CUDA",
    "nccl": "about NCCL",
    "mixed_backend": "makes a group with NCCL",
    "SyncBatchNorm": "needs CUDA or torchvision",
    "torchvision": "needs torchvision",
    "op_err": "takes the second device of CUDA",
    "monitored_barrier": "PyTorch lets Gloo alone have it",
    "accumulate_gradients_no_sync": "makes its model only for backends it knows",
    "barrier_timeout": "starts default groups of its own",
    "logging_data": "PyTorch logs every backend from outside as 'custom'",
    "with_group_param": "for four ranks",
    "sparse": "sparse tensors are refused, see docs/known_differences.md",
    "world_size_not_divisible": "for four ranks",
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce", "broadcast", "scatter", "gather", "all_to_all", "send", "recv")


def ours() -> list[tuple[str, str]]:
    names = [n for n in sorted(dir(suite())) if n.startswith("test_") and not any(part in n for part in NOT_OURS)]
    on_device = [n for n in names if any(part in n for part in COLLECTIVES) and "ddp" not in n.lower()]
    on_device.remove("test_irecv")  # expects wait() to wait, which it doesn't on a device
    return [(n, "cpu") for n in names] + [(n, "tpu") for n in on_device]


@pytest.mark.parametrize("name, device", ours())
@on_ranks(2)
def test_suite(name: str, device: str) -> None:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    case = suite()(name)
    case.rank = dist.get_rank()
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    case.file_name = f"{folder[0]}/store"
    os.environ["TEMP_DIR"] = str(folder[0])  # where they meet by files
    for inner in ("barrier", "test_dir", "init_dir"):
        os.makedirs(f"{folder[0]}/{inner}", exist_ok=True)
    try:
        with torch.device(device):
            getattr(case, name)()
    except SystemExit as left:
        for skip in TEST_SKIPS.values():
            if skip.exit_code == left.code:
                raise unittest.SkipTest(skip.message) from left
        raise
    dist.barrier()
