# SPDX-License-Identifier: Apache-2.0
"""Starting processes: backends and devices by default, torch.tpu.distributed."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import free_port, on_ranks

WORLD = "import torch, torch.distributed as dist\n"


def run(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-c", WORLD + code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alone(**environment: str) -> dict[str, str]:
    return {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1", **environment}


@pytest.mark.parametrize(
    "arguments, backend",
    [
        ('"tpu_dist"', "tpu_dist"),
        ('"tpu"', "tpu"),
        ('device_id=torch.device("tpu:0")', "tpu_dist"),
        ('"cpu:gloo,tpu:tpu_dist"', "cpu:gloo,tpu:tpu_dist"),
    ],
)
def test_backends(arguments: str, backend: str) -> None:
    code = f"""
dist.init_process_group({arguments})
print(dist.get_backend_config())
x = torch.ones(3, device="tpu")
for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
    dist.all_reduce(x, op)
dist.all_reduce(torch.ones(3))
out = torch.empty(3, device="tpu")
dist.reduce_scatter_single(out, x)
dist.all_gather_single(out, x)
assert out.tolist() == x.tolist() == [1, 1, 1]
dist.barrier()
dist.destroy_process_group()
"""
    printed = run(code, **alone())
    assert backend in printed or f"tpu:{backend}" in printed


def test_several_virtual_devices_and_one_device_each() -> None:
    """A program that uses tpu:LOCAL_RANK, as for other devices."""
    code = """
import os
local = int(os.environ["LOCAL_RANK"])
torch.tpu.set_device(local)
dist.init_process_group("tpu_dist", device_id=torch.device("tpu", local))
x = torch.full((3,), local + 1.0, device="tpu")
dist.all_reduce(x)
assert x.device.index == local and x.tolist() == [3, 3, 3]
mesh = dist.init_device_mesh("tpu", (2,))
from torch.distributed.tensor import distribute_tensor, Shard
y = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
assert y.to_local().device.index == local and y.full_tensor().tolist() == [0, 1, 2, 3]
dist.destroy_process_group()
"""
    environment = {**os.environ, **alone(WORLD_SIZE="2", TORCH_TPU_VIRTUAL_DEVICES="2")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORLD + code],
            env={**environment, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output


def test_import_registers_without_loading_more() -> None:
    printed = run(
        "import sys\n"
        "print(dist.Backend.default_device_backend_map['tpu'], dist.Backend.TPU_DIST, dist.Backend.TPU)\n"
        "print('torch.distributed.tensor' in sys.modules, torch.tpu.is_initialized())"
    )
    assert printed.split("\n")[:2] == ["tpu_dist tpu_dist tpu", "False False"]


VARIABLES = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "JOB_COMPLETION_INDEX", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
VARIABLES += ("NNODES", "NPROC_PER_NODE", "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_XPROF_SESSION_ID")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def test_launch_environment(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    environment.setenv("TPU_WORKER_ID", "1")
    environment.setenv("MASTER_PORT", "1234")  # what is set stays
    torch.tpu.distributed.set_tpu_launch_env(nnodes=2, nproc_per_node=4)
    assert os.environ["NODE_RANK"] == "1" and os.environ["NNODES"] == "2" and os.environ["NPROC_PER_NODE"] == "4"
    assert os.environ["MASTER_ADDR"] == "a" and os.environ["MASTER_PORT"] == "1234"
    addresses = os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert len(set(addresses)) == 8 and addresses[4].startswith("b:")
    before = dict(os.environ)
    torch.tpu.distributed.set_tpu_launch_env(nnodes=2, nproc_per_node=4)
    assert dict(os.environ) == before


def test_launch_environment_refuses(environment: pytest.MonkeyPatch) -> None:
    launch = torch.tpu.distributed.set_tpu_launch_env
    with pytest.raises(ValueError, match="TPU_WORKER_HOSTNAMES must name"):
        launch(nnodes=2)
    with pytest.raises(ValueError, match="nproc_per_node must be at least 1"):
        launch(nproc_per_node=0)
    environment.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    with pytest.raises(ValueError, match="names 2 hosts"):
        launch(nnodes=3)
    with pytest.raises(ValueError, match="which of the hosts"):
        launch()


def test_numbers_of_windows() -> None:
    module = torch.tpu.distributed
    for name in ("window_num_stripes", "window_stripe_chunk_mb"):
        before = getattr(module, name)
        setattr(module, name, 7)
        assert getattr(module, name) == 7
        with pytest.raises(ValueError, match="positive"):
            setattr(module, name, 0)
        setattr(module, name, before)


@on_ranks(4)
def test_topology_aware_mesh() -> None:
    make = torch.tpu.distributed.topology_aware_mesh
    assert make((2, 2)).tolist() == [[0, 1], [2, 3]]
    assert make((4,)).dtype == torch.int64
    # Two slices of two ranks, along the second dimension.
    assert make((1, 4), dcn_mesh_shape=(1, 2)).tolist() == [[0, 1, 2, 3]]
    assert make((2, 2), dcn_mesh_shape=(1, 2)).tolist() == [[0, 2], [1, 3]]
    mesh = torch.distributed.device_mesh.DeviceMesh("tpu", make((2, 2)), mesh_dim_names=("a", "b"))
    assert mesh["b"].get_local_rank() == dist.get_rank() % 2
    with pytest.raises(ValueError, match="places for 4 ranks"):
        make((3,))
    with pytest.raises(ValueError, match="doesn't divide"):
        make((2, 2), dcn_mesh_shape=(3, 1))


@on_ranks(2)
def test_spmd_safe() -> None:
    @torch.tpu.distributed.spmd_safe
    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    assert doubled.__name__ == "doubled"
    assert doubled(torch.ones(3, device="tpu")).tolist() == [4, 4, 4]
