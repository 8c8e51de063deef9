# SPDX-License-Identifier: Apache-2.0
"""Runs each task in a forked child with a time limit; what the children report goes to a .jsonl file.

The parent imports the library once and never opens the device, so a child costs a fork. A child that
dies or overruns takes nothing with it: what it reported before that stands, and a last record says how it ended.
"""

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Report = Callable[..., None]


def run_all(
    names: Iterable[str],
    task: Callable[[str, Report], None],
    results: Path,
    limit: float,
    jobs: int = 1,
    memory_mb: int = 6000,
) -> None:
    """Calls task(name, report) for each name that `results` does not have yet; report(**fields) adds a record."""
    done = {record["name"] for record in read(results)}
    waiting = [name for name in names if name not in done]
    print(f"{len(waiting)} to do, {len(done)} done", file=sys.stderr)
    running: dict[int, tuple[str, int, float]] = {}
    poll = select.poll()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            reader, pid = _start(name, task, memory_mb)
            running[reader] = (name, pid, time.monotonic())
            poll.register(reader, select.POLLIN | select.POLLHUP)
        ready = {descriptor for descriptor, _ in poll.poll(1000)}
        for reader, (name, pid, start) in list(running.items()):
            overrun = time.monotonic() - start > limit
            if reader not in ready and not overrun:
                continue
            if overrun:
                os.kill(pid, signal.SIGKILL)
            poll.unregister(reader)
            with os.fdopen(reader) as pipe:
                lines = [line for line in pipe if line.endswith("\n")]
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            end = (
                "time" if overrun else "ok" if status == 0 else f"signal {-status}" if status < 0 else f"exit {status}"
            )
            with results.open("a") as file:
                file.writelines(lines)
                record = {"name": name, "stage": "end", "end": end, "seconds": round(time.monotonic() - start, 1)}
                file.write(json.dumps(record) + "\n")
            print(f"{name}: {end} {record['seconds']} s", file=sys.stderr, flush=True)
            del running[reader]


def _start(name: str, task: Callable[[str, Report], None], memory_mb: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    if (pid := os.fork()) != 0:
        os.close(writer)
        return reader, pid
    os.close(reader)
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)

        def report(**fields: Any) -> None:
            os.write(writer, (json.dumps({"name": name, **fields}) + "\n").encode())

        task(name, report)
        status = 0
    except BaseException:
        os.write(writer, (json.dumps({"name": name, "stage": "task", "error": traceback.format_exc()}) + "\n").encode())
    finally:
        os._exit(status)


def read(results: Path) -> list[dict[str, Any]]:
    """The records of a results file; a last line cut short is left out."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines(keepends=True) if line.endswith("\n")]


def by_name(results: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """name -> stage -> record, in the order of the file; a later record takes the place of an earlier one."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for record in read(results):
        out.setdefault(record["name"], {})[record["stage"]] = record
    return out
