# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stall or go other ways: the others hear of it in time, and nobody hangs."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from ranks import free_port

pytestmark = pytest.mark.xdist_group("distributed")

START = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("tpu_dist", timeout=timedelta(seconds=float(os.environ["SECONDS"])))
x = torch.ones(1000, device="tpu")
dist.all_reduce(x)
assert x.cpu()[0] == dist.get_world_size()
"""


def launch(code: str, size: int, seconds: float = 5, limit: float = 60) -> list[tuple[int, str]]:
    """Runs `code` on each rank; returns the exit status and the output of each."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "SECONDS": str(seconds),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START + textwrap.dedent(code)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    until = time.monotonic() + limit
    try:
        return [(p.wait(max(0.1, until - time.monotonic())), p.stdout.read()) for p in processes]  # type: ignore[union-attr]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def test_killed_rank() -> None:
    """kill -9 in the middle of training: the others name it, and the collective with its sizes."""
    done = launch(
        """
        begin = time.monotonic()
        try:
            for step in range(1000):
                if rank == 2 and step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.all_reduce(x)
                x /= 3
                torch.tpu.synchronize()
        except RuntimeError as error:
            print(f"after {time.monotonic() - begin:.1f} s: {error}")
            assert time.monotonic() - begin < 20
            try:
                dist.all_reduce(torch.ones(2, device="tpu"))
            except dist.DistBackendError as error:
                assert "can't be used any more" in str(error)
                os._exit(7)
        """,
        3,
        seconds=10,
    )
    assert done[2][0] == -signal.SIGKILL
    for rank in (0, 1):
        status, output = done[rank]
        assert status == 7, output
        assert f"rank {rank} of group" in output
        assert "all_reduce(SUM) of float32[1000]" in output
        assert "rank 2 did not take part" in output, output


def test_stalled_rank() -> None:
    done = launch(
        """
        if rank == 1:
            time.sleep(12)
            os._exit(0)
        begin = time.monotonic()
        y = torch.ones(3, 5, device="tpu")
        dist.all_reduce(y)
        assert time.monotonic() - begin < 2
        try:
            y.cpu()
        except RuntimeError as error:
            print(error)
            assert 2 < time.monotonic() - begin < 10
            assert torch.ones(2, device="tpu").add(1).cpu().tolist() == [2, 2]  # the device lives on
            os._exit(7)
        """,
        2,
        seconds=3,
    )
    assert done[0][0] == 7, done[0][1]
    assert "all_reduce(SUM) of float32[3, 5]" in done[0][1]
    assert "rank 1 did not take part" in done[0][1]


def test_sender_that_dies() -> None:
    done = launch(
        """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        y = torch.ones(3, 5, device="tpu")
        try:
            dist.recv(y, 1)
            y.cpu()
        except RuntimeError as error:
            print(error)
            os._exit(7)
        """,
        2,
        seconds=5,
    )
    assert done[0][0] == 7, done[0][1]
    assert "recv of float32[3, 5] from rank 1" in done[0][1]


def test_ranks_that_go_other_ways() -> None:
    """What one rank alone reads, computes, compiles or prints doesn't hold up the others."""
    done = launch(
        """
        for step in range(5):
            y = x * (rank + 1)
            if rank == 0:
                print(y.sum().item())
                torch.randn(50, 50, device="tpu").matmul(torch.ones(50, device="tpu")).sum().item()
            if rank == 1 and step == 2:
                z = torch.linalg.qr(torch.randn(8, 8, device="tpu"))
            dist.all_reduce(y)
            x = y / 3
        torch.tpu.synchronize()
        dist.destroy_process_group()
        print("done")
        """,
        2,
        seconds=30,
    )
    for status, output in done:
        assert status == 0 and "done" in output, output


def test_exit_without_destroying_the_group() -> None:
    """What a rank gave last arrives, though its process ends at once."""
    done = launch(
        """
        y = torch.full((1 << 20,), 3.0, device="tpu")
        if rank == 0:
            dist.broadcast(y, 0)
            dist.isend(y, 1)
        else:
            y.zero_()
            dist.broadcast(y, 0)
            assert y.sum().item() == 3 << 20
            y.zero_()
            dist.recv(y, 0)
            assert y.sum().item() == 3 << 20
            print("received")
        """,
        2,
    )
    assert done[0][0] == 0, done[0][1]
    assert done[1][0] == 0 and "received" in done[1][1], done[1][1]


def test_torchrun_restarts(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal
            import torch
            import torch.distributed as dist
            dist.init_process_group(device_id=torch.device("tpu", 0))
            assert dist.get_backend() == "tpu_dist"
            rank, folder = dist.get_rank(), {str(tmp_path)!r}
            weight = torch.zeros(3, device="tpu")
            step = 0
            if os.path.exists(f"{{folder}}/saved"):
                saved = torch.load(f"{{folder}}/saved", map_location="tpu")
                weight, step = saved["weight"], saved["step"]
            first = step
            while step < 6:
                gradient = torch.full((3,), rank + 1.0, device="tpu")
                dist.all_reduce(gradient)
                weight += gradient
                step += 1
                if rank == 0:
                    torch.save({{"weight": weight, "step": step}}, f"{{folder}}/new")
                    os.replace(f"{{folder}}/new", f"{{folder}}/saved")
                dist.barrier()
                if rank == 1 and step == 3 and first == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            assert weight.tolist() == [18.0] * 3
            os.write(1, f"finished from {{first}}\\n".encode())
            dist.destroy_process_group()
            """
        )
    )
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    run += [f"--master-port={free_port()}", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("finished from 3") == 2, done.stdout
