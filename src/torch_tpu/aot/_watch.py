# SPDX-License-Identifier: Apache-2.0
"""TORCH_TPU_AOT_TOPOLOGY: while a program runs on virtual devices, each program it launches is also
compiled for a TPU topology, by a thread that feeds the worker process. The program runs the forms that
a TPU would, and neither waits for the compiler nor dies with it."""

import atexit
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_tpu import _C
from torch_tpu._text import installed, size
from torch_tpu.aot import _client
from torch_tpu.aot._report import LoopTime, estimate
from torch_tpu.aot.chips import parse_topology


@dataclass
class Verdict:
    """What the compiler says of one program. `failure` is empty where it compiled."""

    name: str = ""
    line: str = ""
    failure: str = ""
    seconds: float = 0.0  # the compiler's estimate
    temporaries: int = 0
    peak: int = 0
    compile_seconds: float = 0.0
    cached: bool = False


def judge(text: str, topology: str, *, wait: float = _client.WAIT_SECONDS, on_wait: Any = None) -> Verdict:
    """The verdict on a StableHLO module, from the disk if it was judged before. CompilerBusy isn't kept."""
    chip, topology = parse_topology(topology)
    file = _verdict_file(text, topology)
    if file is not None:
        try:
            return Verdict(**{**json.loads(file.read_text()), "cached": True})
        except (OSError, ValueError, TypeError):  # none yet, or damaged: judged again
            pass
    try:
        reply = _client.compiler.compile(text, topology, wait=wait, on_wait=on_wait)
    except _client.CompileError as error:
        verdict = Verdict(failure=str(error).removeprefix("compile ahead of time: "))
    else:
        raw = reply["cost"].get("optimal_seconds", 0.0)
        memory = reply["memory"]
        verdict = Verdict(
            seconds=estimate(raw, 0.0, 0.0, LoopTime(), 0.0, chip)[0],
            temporaries=memory["temporaries"],
            peak=memory["peak"],
            compile_seconds=reply["compile_seconds"],
        )
    if file is not None:
        _write(file, json.dumps(asdict(verdict)))
    return verdict


def _verdict_file(text: str, topology: str) -> Path | None:
    folder = _C.cache_folder()
    if not folder:
        return None
    parts = (text, topology, installed("libtpu"), str(_C.allow_excess_precision()))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Path(folder) / "aot" / f"{key}.json"


def _write(file: Path, content: str) -> None:
    """Whole or not at all; a full disk or a read-only folder costs only the next run's time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "w") as out:
                out.write(content)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        pass


class Watch:
    """Judges what the process launches, in a thread of its own."""

    def __init__(self, topology: str):
        self.chip, self.topology = parse_topology(topology)
        self.verdicts: list[Verdict] = []
        self.trouble = ""  # why there are no more verdicts
        self._pid = os.getpid()
        self._result = os.environ.pop(RESULT_FILE, "")  # not for the program's own children
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torch_tpu aot", daemon=True)

    def start(self) -> None:
        _client.library()
        _C.start_watching()
        self._thread.start()
        atexit.register(self._at_exit)

    def _run(self) -> None:
        while True:
            seen = _C.next_seen(0.2)
            if seen is None:
                if self._ending.is_set():
                    return
                continue
            if self.trouble:
                continue
            name, line, text = seen
            try:
                verdict = judge(text, self.topology, on_wait=lambda who: _say(f"waiting: {who}"))
            except Exception as error:
                self.trouble = str(error)
                continue
            verdict.name, verdict.line = name, line
            self.verdicts.append(verdict)

    def finish(self) -> None:
        """Waits until every program so far has its verdict."""
        self._ending.set()
        told, count = time.monotonic(), -1
        while self._thread.is_alive():
            self._thread.join(1)
            if time.monotonic() - told > 5 and len(self.verdicts) != count:
                told, count = time.monotonic(), len(self.verdicts)
                _say(f"{count} programs compiled, more to come (Ctrl-C stops it)")

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:  # a forked child has neither the thread nor the worker
            return
        try:
            self.finish()
        except KeyboardInterrupt:
            self.trouble = self.trouble or "interrupted"
        _client.compiler.close(kill=True)
        if self._result or self.verdicts or self.trouble:
            print(self.table(), file=sys.stderr, flush=True)
        if self._result:
            rows = [asdict(v) for v in self.verdicts]
            _write(Path(self._result), json.dumps({"trouble": self.trouble, "verdicts": rows}))

    def table(self) -> str:
        """What failed and why, then the slowest and the largest programs."""
        failed = [v for v in self.verdicts if v.failure]
        fine = [v for v in self.verdicts if not v.failure]
        cached = sum(v.cached for v in self.verdicts)
        spent = sum(v.compile_seconds for v in self.verdicts if not v.cached)
        lines = [
            f"torch_tpu aot: {len(self.verdicts)} programs for {self.topology}: {len(fine)} compile, {len(failed)} fail"
            f" ({cached} known from before, {spent:.1f} s of compiling)"
        ]
        if self.trouble:
            lines.append(f"  incomplete: {self.trouble}")
        for v in failed:
            lines.append(f"  FAILS {v.name} at {v.line or 'no line'}: {v.failure.splitlines()[0][:300]}")
        for title, key, show in (
            ("slowest by the compiler's estimate", lambda v: v.seconds, lambda v: f"{v.seconds * 1e6:.1f} us"),
            ("largest by peak memory", lambda v: v.peak, lambda v: size(v.peak)),
        ):
            rows = sorted(fine, key=key, reverse=True)[:5]
            if rows:
                lines.append(f"  {title}:")
                lines += [f"    {show(v):>12}  {v.name} at {v.line or 'no line'}" for v in rows]
        return "\n".join(lines)


RESULT_FILE = "TORCH_TPU_AOT_RESULT"  # between `python -m torch_tpu aot` and the program it starts


def _say(text: str) -> None:
    print(f"torch_tpu aot: {text}", file=sys.stderr, flush=True)


def start(topology: str) -> Watch:
    """Begins to watch this process. Raises ValueError for a wrong topology, RuntimeError without libtpu."""
    watch = Watch(topology)
    watch.start()
    return watch


def run_script(topology: str, script: str, arguments: list[str]) -> int:
    """Runs a program under watch, as `python script arguments`. Its exit code; 1 where that is 0 but some
    program failed to compile or has no verdict."""
    import subprocess

    parse_topology(topology)
    _client.library()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environment = {**os.environ, "TORCH_TPU_AOT_TOPOLOGY": topology, RESULT_FILE: str(result)}
        code = subprocess.call([sys.executable, script, *arguments], env=environment)
        try:
            outcome = json.loads(result.read_text())
        except (OSError, ValueError):
            _say(f"the program ended (exit code {code}) without a table")
            return code or 1
    return code or int(bool(outcome["trouble"]) or any(v["failure"] for v in outcome["verdicts"]))
