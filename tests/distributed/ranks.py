# SPDX-License-Identifier: Apache-2.0
"""Runs the body of a test on each rank of a group of processes that lives as long as the tests do."""

import atexit
import functools
import importlib
import inspect
import multiprocessing
import os
import signal
import socket
import time
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest

SECONDS = float(os.environ.get("RANKS_SECONDS", "60"))  # for one body


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    import faulthandler
    import signal

    import torch
    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1)  # what a rank that hangs is at
    torch.set_num_threads(1)
    dist.init_process_group(
        "tpu_dist",
        init_method=f"tcp://localhost:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    while (call := pipe.recv()) is not None:
        module, name, arguments = call
        try:
            torch.manual_seed(0)
            getattr(importlib.import_module(module), name).body(**arguments)
            torch.tpu.synchronize()
            pipe.send(None)
        except unittest.SkipTest as reason:
            pipe.send(reason)
        except BaseException:
            pipe.send(traceback.format_exc())
    dist.destroy_process_group()


class Ranks:
    """`size` processes in one default group."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, module: str, name: str, arguments: dict[str, Any]) -> None:
        for pipe in self.pipes:
            pipe.send((module, name, arguments))
        until = time.monotonic() + SECONDS
        failures, skipped = [], None
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    failures.append(f"rank {rank}: nothing within {SECONDS} s")
                elif isinstance(told := pipe.recv(), unittest.SkipTest):
                    skipped = told
                elif told:
                    failures.append(f"rank {rank}: {told}")
            except EOFError:
                failures.append(f"rank {rank}: its process ended")
        if failures:
            for process in self.processes:
                if process.is_alive():
                    os.kill(process.pid or 0, signal.SIGUSR1)
            time.sleep(0.5)
            self.end()  # the ranks may no longer be at the same place
            raise AssertionError("\n".join(failures))
        if skipped:
            raise skipped

    def end(self) -> None:
        _groups.pop(len(self.processes), None)
        for process in self.processes:
            process.kill()
            process.join()


_groups: dict[int, Ranks] = {}


def _group(size: int) -> Ranks:
    if size not in _groups:
        _groups[size] = Ranks(size)
    return _groups[size]


@atexit.register
def _end() -> None:
    for group in list(_groups.values()):
        group.end()


def on_ranks(*sizes: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test's body runs on each rank of groups of these sizes; it must do the same on all of them."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(ranks: int, **arguments: Any) -> None:
            _group(ranks).run(body.__module__, body.__name__, arguments)

        own = inspect.Parameter("ranks", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([*inspect.signature(body).parameters.values(), own])  # type: ignore[attr-defined]
        test.body = body  # type: ignore[attr-defined]
        return pytest.mark.xdist_group("distributed")(pytest.mark.parametrize("ranks", sizes)(test))

    return decorate
