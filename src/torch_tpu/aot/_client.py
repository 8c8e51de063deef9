# SPDX-License-Identifier: Apache-2.0
"""The owner of the worker process: starts it, survives its crashes, lets it go when idle."""

import atexit
import glob
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from torch_tpu import _C
from torch_tpu._loader import package_file
from torch_tpu.aot.chips import valid_topologies

IDLE_SECONDS = 3.0  # after which another process may have the library
WAIT_SECONDS = 900.0  # for the library's lock


class CompileError(RuntimeError):
    """The TPU compiler refused a program, or died of it (`crashed`)."""

    def __init__(self, text: str, crashed: bool = False):
        super().__init__(text)
        self.crashed = crashed


class OutOfDeviceMemory(CompileError):
    """The program does not fit the memory of the device."""


class CompilerBusy(RuntimeError):
    """Another process held the TPU compiler for too long."""


def library() -> str:
    """Path of libtpu. RuntimeError says how to install it."""
    if path := package_file("libtpu", ("libtpu.so",)):
        return path
    raise RuntimeError(
        "compiling for a TPU needs the package libtpu, which is not installed: pip install libtpu, or torch_tpu[tpu]"
    )


class Compiler:
    """One worker process, started when it is needed. Thread-safe; requests go one at a time."""

    def __init__(self) -> None:
        self._begin()
        # A forked child must not talk to its parent's worker, nor wait for a lock that a thread held.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._timer: threading.Timer | None = None

    def compile(
        self,
        text: str,
        topology: str,
        *,
        hlo: bool = False,
        serialized: bool = False,
        wait: float = WAIT_SECONDS,
        on_wait: Any = None,
    ) -> dict[str, Any]:
        """Compiles a StableHLO module. Raises CompileError, OutOfDeviceMemory or CompilerBusy."""
        request = {
            "text": text,
            "topology": topology,
            "flags": {"xla_allow_excess_precision": _C.allow_excess_precision()},
            "hlo": hlo,
            "serialized": serialized,
            "wait": wait,
        }
        with self._lock:
            worker = self._start()
            try:
                pickle.dump(request, worker.stdin)
                worker.stdin.flush()
                while True:
                    kind, reply = pickle.load(worker.stdout)
                    if kind != "waiting":
                        break
                    if on_wait:
                        on_wait(reply)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):
                raise self._crash() from None
            except BaseException:  # an interrupt: the answer that comes later belongs to nobody
                self.close(kill=True)
                raise
            self._let_go_later()
        if kind == "done":
            return reply
        if kind == "busy":
            raise CompilerBusy(reply)
        if kind == "topology":
            raise ValueError(f"{reply}; valid are {valid_topologies()}")
        raise (OutOfDeviceMemory if kind == "memory" else CompileError)(reply)

    def close(self, kill: bool = False) -> None:
        """Ends the worker, so that another process may use the library."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            worker, self._worker = self._worker, None
            if worker is None:
                return
            worker.kill() if kill else worker.stdin.close()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            worker.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._worker and self._worker.poll() is None:
            return self._worker
        environment = dict(os.environ)
        # No TPU is looked for: the compiler alone is wanted.
        for name, value in {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "tpu7x-8",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_LOG_DIR": "disabled",
            "TPU_MIN_LOG_LEVEL": "3",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }.items():
            environment.setdefault(name, value)
        folder = Path(__file__).parent
        (extension,) = glob.glob(str(folder.parent / "_compiler.*.so"))
        self._errors = tempfile.TemporaryFile()
        self._worker = subprocess.Popen(
            [sys.executable, "-I", str(folder / "worker.py"), extension, library(), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # Ctrl-C is the program's to handle
        )
        return self._worker

    def _crash(self) -> CompileError:
        worker = self._worker
        code = worker.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("F0") or "Check failed" in line or "*** " in line]
        self.close(kill=True)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return CompileError(f"the compiler died ({how}): {' '.join((fatal or lines)[:3])[:600]}", crashed=True)

    def _let_go_later(self) -> None:
        self._timer = threading.Timer(IDLE_SECONDS, self._let_go)
        self._timer.daemon = True
        self._timer.start()

    def _let_go(self) -> None:
        if self._lock.acquire(blocking=False):  # busy again: that request sets a new timer
            try:
                if self._timer is not None:
                    self.close()
            finally:
                self._lock.release()


compiler = Compiler()
atexit.register(compiler.close, kill=True)
