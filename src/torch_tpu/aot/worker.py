# SPDX-License-Identifier: Apache-2.0
"""The process that holds the TPU compiler. Run as a file, with the path of the extension module
`_compiler` and of libtpu: it needs neither PyTorch nor this package.

Requests and replies are pickles on standard input and output. The library takes a lock on one file of
the machine, so that one process at a time uses it: a worker waits for its turn, and its owner lets go
of it when there is nothing to compile.
"""

import fcntl
import glob
import importlib.util
import os
import pickle
import struct
import sys
import tempfile
import threading
import time

LOCK = "/tmp/libtpu_lockfile"  # the library's own path, not ours to choose
_FLOCK = "hhqqi4x"  # struct flock of Linux on 64 bits


def lock_holder() -> int | None:
    """Process that holds the library's lock; 0 if it can't be seen from here, None if nobody does."""
    try:
        file = os.open(LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK, fcntl.F_RDLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(file)


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").replace(b"\n", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return "not visible from here"


def unlock_stale() -> None:
    """The lock's file is there, nobody holds it, and the library still refuses: left by another user."""
    try:
        os.rmdir(LOCK) if os.path.isdir(LOCK) and not os.path.islink(LOCK) else os.unlink(LOCK)
    except OSError:
        # Not ours to remove. Compiling touches no TPU, which is what the lock protects.
        os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"


def open_topology(compiler, library: str, name: str, wait: float, say):
    """The topology, after waiting for the library's lock. TimeoutError names who holds it."""
    deadline = time.monotonic() + wait
    refused = 0
    told = False
    while True:
        # The library's own switch for those who know that no TPU is shared.
        shared = os.environ.get("ALLOW_MULTIPLE_LIBTPU_LOAD", "").lower() in ("1", "true")
        holder = None if shared else lock_holder()
        if holder is None or holder == os.getpid():
            try:
                return compiler.AotTopology(library, name)
            except RuntimeError as error:
                text = str(error)
                if text.startswith("topology "):
                    raise ValueError(text) from None
                if "lockfile" not in text and "in use by another process" not in text:
                    raise
                if lock_holder() is None:
                    refused += 1
                    if refused >= 3:  # not a race with somebody who has gone since
                        unlock_stale()
        elif not told:
            say(("waiting", f"process {holder} ({name_of(holder)}) holds the lock of libtpu"))
            told = True
        if time.monotonic() > deadline:
            who = f"process {holder} ({name_of(holder)})" if holder else "another process"
            raise TimeoutError(f"{who} held the lock of libtpu, {LOCK}, for {wait:.0f} s")
        time.sleep(0.1)


def compile_one(topology, request: dict) -> dict:
    reply = {"device": topology.device_kinds()[0], "attributes": topology.attributes()}
    flags = dict(request["flags"])
    with tempfile.TemporaryDirectory(prefix="torch_tpu_aot_") as folder:
        if request["hlo"]:
            flags |= {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        start = time.perf_counter()
        program = topology.compile(request["text"], flags)
        reply["compile_seconds"] = time.perf_counter() - start
        if request["hlo"]:
            files = glob.glob(os.path.join(folder, "*.after_optimizations.txt"))
            reply["hlo"] = open(max(files, key=os.path.getsize)).read() if files else ""
            # Who holds what at the moment of the greatest need.
            files = glob.glob(os.path.join(folder, "*memory-usage-report.txt"))
            reply["memory_report"] = open(max(files, key=os.path.getsize)).read() if files else ""
    reply["cost"] = {k: v for k, v in program.cost().items() if "{" not in k}
    reply["memory"] = program.memory()
    if request["serialized"]:
        reply["serialized"] = program.serialized()
    return reply


def watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)  # nobody is left to answer


def main() -> None:
    extension, library, parent = sys.argv[1:4]
    threading.Thread(target=watch_parent, args=(int(parent),), daemon=True).start()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints must not get among the replies

    def say(message) -> None:
        pickle.dump(message, replies)
        replies.flush()

    spec = importlib.util.spec_from_file_location("_compiler", extension)
    compiler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    topologies: dict = {}
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            name = request["topology"]
            if name not in topologies:
                topologies[name] = open_topology(compiler, library, name, request["wait"], say)
            say(("done", compile_one(topologies[name], request)))
        except TimeoutError as error:
            say(("busy", str(error)))
        except ValueError as error:
            say(("topology", str(error)))
        except MemoryError as error:
            say(("memory", str(error)))
        except Exception as error:
            say(("failed", str(error)))


if __name__ == "__main__":
    main()
