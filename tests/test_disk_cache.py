# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled programs, with the faults done for real: none may do more than miss."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch  # noqa: F401  (loads the device)

from torch_tpu import _C

cache = _C.testing
HEADER = 48  # bytes before the content


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(path))
    monkeypatch.setenv("TORCH_TPU_CACHE", "1")
    monkeypatch.delenv("TORCH_TPU_CACHE_SIZE_MB", raising=False)
    return path


def entry(folder: Path, name: str) -> Path:
    return folder / f"{cache.cache_name(name)}.xla"


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "import torch; from torch_tpu import _C; cache = _C.testing\n" + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_store_and_load(folder):
    assert cache.cache_load("a") is None
    for content in (b"", b"x", bytes(range(256)) * 5000):
        cache.cache_store("a", content)
        assert cache.cache_load("a") == content
    assert _C.cache_folder() == str(folder)
    assert _C.cache_usage() == (1, HEADER + 256 * 5000)
    cache.cache_discard("a")
    assert cache.cache_load("a") is None


def test_off(folder, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE", "0")
    cache.cache_store("a", b"content")
    assert cache.cache_load("a") is None
    assert _C.cache_folder() == "" and not folder.exists()


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_TPU_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _C.cache_folder() == str(tmp_path / "home" / ".cache" / "torch_tpu")
    cache.cache_store("a", b"content")
    assert cache.cache_load("a") == b"content"


def test_clear_touches_only_its_own_files(folder):
    cache.cache_store("a", b"content")
    (folder / "notes.xla").write_text("mine")
    (folder / "README").write_text("mine")
    _C.cache_clear()
    assert _C.cache_usage() == (0, 0)
    assert sorted(p.name for p in folder.iterdir()) == ["README", "notes.xla"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:10],
        lambda b: b[:HEADER],
        lambda b: b[:-1],
        lambda b: b + b"x",
        lambda b: b"junk" + b[4:],
        lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:],
        lambda b: b[:24] + b"\xff" * 8 + b[32:],  # a size beyond all memory
        lambda b: bytes(len(b)),
    ],
)
def test_damaged_entries_are_dropped(folder, damage):
    cache.cache_store("a", b"content" * 100)
    path = entry(folder, "a")
    path.write_bytes(damage(path.read_bytes()))
    assert cache.cache_load("a") is None
    assert not path.exists()
    cache.cache_store("a", b"again")
    assert cache.cache_load("a") == b"again"


def test_entry_under_another_key_is_refused(folder):
    cache.cache_store("a", b"content")
    entry(folder, "a").rename(entry(folder, "b"))
    assert cache.cache_load("b") is None


def test_folder_that_cannot_be_made(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    done = run(
        "cache.cache_store('a', b'1'); cache.cache_store('b', b'2')\n"
        "assert cache.cache_load('a') is None and _C.cache_usage() == (0, 0); _C.cache_clear()",
        TORCH_TPU_CACHE_DIR=str(blocker / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("compiled programs are not kept on disk") == 1, done.stderr  # once, not twice


@pytest.fixture
def tmpfs(tmp_path):
    """Mounts a tmpfs of a few pages; skips where that isn't allowed."""
    mounted = []

    def mount(options: str) -> Path:
        path = tmp_path / "tmpfs"
        path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting a tmpfs is not allowed here")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_full_disk(tmpfs, monkeypatch):
    path = tmpfs("size=64k")
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(path))
    cache.cache_store("small", b"x" * 1000)
    cache.cache_store("big", os.urandom(200_000))
    assert cache.cache_load("small") == b"x" * 1000
    assert cache.cache_load("big") is None
    assert list(path.glob("*.tmp")) == []  # nothing half-written is left to fill the disk


def test_read_only_disk(tmpfs, monkeypatch):
    path = tmpfs("size=64k")
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(path))
    cache.cache_store("a", b"content")
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    cache.cache_store("b", b"content")
    assert cache.cache_load("a") == b"content" and cache.cache_load("b") is None
    _C.cache_clear()
    assert _C.cache_usage()[0] == 1


def test_file_size_limit(folder):
    """Where no disk can be filled: the kernel refuses to write past a limit."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "cache.cache_store('big', b'x' * 100_000); assert cache.cache_load('big') is None\n"
        "cache.cache_store('small', b'x'); assert cache.cache_load('small') == b'x'"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("*.tmp")) == []


def test_no_file_descriptors_left():
    cache.cache_store("a", b"content")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        found = cache.cache_load("a")
        cache.cache_store("b", b"content")
        usage = _C.cache_usage()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found is None and usage == (0, 0)
    assert cache.cache_load("a") == b"content"


def test_bound_drops_the_least_recently_used(folder, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_SIZE_MB", "1")
    for i in range(8):
        cache.cache_store(f"k{i}", os.urandom(120_000))
        os.utime(entry(folder, f"k{i}"), (1000 + i, 1000 + i))
    assert cache.cache_load("k0") is not None  # used: now the newest
    cache.cache_store("k8", os.urandom(120_000))
    _, size = _C.cache_usage()
    assert size <= 1 << 20
    assert cache.cache_load("k0") is not None and cache.cache_load("k8") is not None
    assert cache.cache_load("k1") is None
    cache.cache_store("huge", os.urandom(2 << 20))  # more than the bound: not worth evicting all
    assert cache.cache_load("huge") is None and cache.cache_load("k8") is not None


def test_killed_while_writing(folder):
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, torch; from torch_tpu import _C\n"
            "blob = os.urandom(64 << 20); print('go', flush=True)\n"
            "while True: _C.testing.cache_store('a', blob)",
        ],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.tmp")) and time.monotonic() < deadline:
        pass
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    left = list(folder.glob("*.tmp"))
    found = cache.cache_load("a")
    assert found is None or len(found) == 64 << 20
    cache.cache_store("b", b"content")
    assert cache.cache_load("b") == b"content"
    # What was left goes once it is too old to be some process's work.
    if left:
        os.utime(left[0], (0, 0))
        done = run("cache.cache_store('c', b'content')")
        assert done.returncode == 0, done.stderr
        assert not left[0].exists()


def _hammer(seed: int) -> int:
    wrong = 0
    for i in range(300):
        name = f"k{(i * 7 + seed) % 5}"
        if i % 3 == 0:
            cache.cache_store(name, name.encode() * 20_000)
        elif i % 31 == 1:
            _C.cache_clear()
        else:
            found = cache.cache_load(name)
            wrong += found is not None and found != name.encode() * 20_000
    return wrong


def test_processes_and_threads_at_once():
    results: list[int] = []
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pending = pool.map_async(_hammer, range(3))
        threads = [threading.Thread(target=lambda s=s: results.append(_hammer(s))) for s in (3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results += pending.get(120)
    assert results == [0] * 5
