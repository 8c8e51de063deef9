# SPDX-License-Identifier: Apache-2.0
"""What was compiled and why: torch.tpu.compile_report(), TORCH_TPU_LOG=compiles, storms, the progress line."""

import functools
import os
import pty
import subprocess
import sys
import textwrap
import warnings

import conformance
import pytest
import torch
from subprocess_run import run
from torch import nn


def alone(test):
    """Runs a test in a process of its own: reasons and warnings depend on what was called before."""

    @functools.wraps(test)
    def wrapper():
        folder, module = os.path.split(__file__)
        run(f"import sys; sys.path.insert(0, {folder!r}); import {module[:-3]} as t; t.{test.__name__}.__wrapped__()")

    return wrapper


def report(function):
    """Calls a function; returns what it compiled."""
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    function()
    torch.tpu.synchronize()
    return torch.tpu.compile_report()


def ones(*sizes, **options):
    return torch.ones(*sizes, device="tpu", **options)


@alone
def test_reasons():
    def reasons(*calls):
        return [c.reason for call in calls for c in report(call) if "full" not in c.name and "fill" not in c.name]

    x, y, z = ones(3, 71), ones(3, 72), ones(3, 72, dtype=torch.float64)
    t, w = ones(72, 3).t(), ones(3, 71)
    (first,) = reasons(lambda: torch.hypot(x, x))
    assert first == "aten::hypot is called for the first time"
    assert reasons(
        lambda: torch.hypot(y, y),
        lambda: torch.hypot(z, z),
        lambda: torch.hypot(y, t),
    ) == [
        "argument 0 of aten::hypot changed size from (3, 71) to (3, 72), "
        "argument 1 changed size from (3, 71) to (3, 72)",
        "argument 0 of aten::hypot changed dtype from float32 to float64, "
        "argument 1 changed dtype from float32 to float64",
        "argument 1 of aten::hypot changed strides from contiguous to (1, 3)",
    ]
    assert reasons(lambda: torch.fmod(x, x), lambda: torch.fmod(x, w)) == [
        "aten::fmod is called for the first time",
        "which arguments of aten::fmod share a storage changed",
    ]
    assert reasons(lambda: torch.xlogy(y, 2.5), lambda: torch.xlogy(y, 3)) == [
        "aten::xlogy is called for the first time",
        "argument 1 of aten::xlogy changed from a float to an int",
    ]
    assert reasons(lambda: x.logcumsumexp(0), lambda: x.logcumsumexp(1))[-1] == (
        "argument 1 of aten::_logcumsumexp changed from 0 to 1"
    )
    assert reasons(lambda: torch.hstack([x, x]), lambda: torch.hstack([x, x, x]))[-1].startswith(
        "argument 0 of aten::cat changed from 2 tensors to 3"
    )


def test_lines_and_times():
    x = ones(5, 41)
    (entry,) = report(lambda: torch.atan2(x, x))
    assert entry.line.startswith(__file__ + ":") and entry.name == "aten::atan2" and entry.seconds > 0
    shown = str(torch.tpu.compile_report()).splitlines()
    assert shown[0] == str(entry) and f"aten::atan2 in {entry.seconds * 1e3:.0f} ms at {__file__}:" in shown[0]
    assert "compiled in" in shown[1] and "loaded" in shown[1]
    assert not report(lambda: torch.atan2(x, x))  # nothing new


def test_from_disk(tmp_path):
    code = """
        import torch
        (torch.ones(7, 5, device="tpu") * 3).cpu()
        print(*[c.from_disk for c in torch.tpu.compile_report()])
        print(torch.tpu.compile_report())
        """
    first = run(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).splitlines()
    second = run(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).splitlines()
    assert set(first[0].split()) == {"False"} and "compiled aten::mul" in "".join(first)
    assert set(second[0].split()) == {"True"} and "loaded aten::mul" in "".join(second)
    assert second[-1].startswith("0 compiled in 0.0 s,")


@alone
def test_fused_graphs():
    with conformance.eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        x = ones(9, 31)
        (entry,) = report(lambda: (x.cos() * 2).tan().sum().item())
        assert entry.name == "fused_4" and entry.reason.startswith("a new fused graph of 4 operators: aten::")
        y = ones(9, 32)
        (entry,) = report(lambda: (y.cos() * 2).tan().sum().item())
        assert entry.reason == (
            "a new fused graph of 4 operators: argument 0 of aten::cos changed size from (9, 31) to (9, 32)"
        )
        (entry,) = report(lambda: (y.cos() * 2).sum().item())
        assert "operator 2 is aten::sum" in entry.reason and "where an earlier graph has aten::tan" in entry.reason
        held = []
        (entry,) = report(lambda: held.append(y.cos()) or (held[0] * 2).sum().item())
        assert entry.reason.endswith("the same operators as an earlier graph, but other results are still held")


@alone
def test_compiled_graphs():
    f = torch.compile(lambda x, k: x * k + k, backend="tpu", dynamic=True)
    (entry,) = report(lambda: f(ones(6, 10), 3))[-1:]
    assert entry.reason == "the compiled graph is called for the first time"
    (entry,) = report(lambda: f(ones(6, 11), 3))[-1:]
    assert entry.reason.startswith("the compiled graph for sizes up to ") and entry.reason.endswith("the first time")
    g = torch.compile(lambda x: (x * 2).tanh(), backend="tpu", dynamic=True, options={"size_buckets": []})
    g(ones(6, 10))
    (entry,) = report(lambda: g(ones(6, 11)))[-1:]
    assert "changed size from (6, 10) to (6, 11)" in entry.reason and "of the compiled graph" in entry.reason


def storm(step, count=14):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for k in range(count):
            step(k).cpu()
    return [str(w.message) for w in seen if "keeps changing" in str(w.message)]


@alone
def test_storm_is_told_once():
    told = storm(lambda k: torch.erfc(torch.ones(4, 300 + k).to("tpu")), count=25)
    (message,) = told
    assert message.startswith("aten::erfc has been compiled 10 times because argument 0 keeps changing, now at ")
    assert f"{__file__}:" in message and "Pad" in message and "mark_dynamic" in message
    assert "changed size from (4, 309) to (4, 310)" in message
    assert not storm(lambda k: torch.erfc(torch.ones(5, 400 + k).to("tpu")))


@alone
def test_storm_of_settings_and_lists():
    x = ones(40, 3)
    (message,) = storm(lambda k: nn.functional.pad(x, (0, 60 + k)))
    assert "part of the program" in message and "aten::constant_pad_nd" in message
    (message,) = storm(lambda k: torch.hstack([x] * (k + 1)))
    assert "number of tensors" in message


@alone
def test_no_storm_in_a_first_step():
    """Many sizes in one pass through a network, nothing read in between."""
    tensors = [ones(3, 50 + k) for k in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.tpu.synchronize()
        results = [t.erfinv() for t in tensors]
        assert len(results) == 20


@alone
def test_storm_of_fused_graphs():
    with conformance.eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = ones(3, 3)
        for k in range(80):
            y = x
            for _ in range(k // 2 + 1):  # a graph is compiled when it comes a second time
                y = y.sin()
            y.cpu()
    messages = [str(w.message) for w in seen if "DEFER_AND_FUSE" in str(w.message)]
    (message,) = messages
    assert "it goes on where an earlier graph ended" in message and "DEFER_NEVER" in message


def test_log_of_compilations(tmp_path):
    log = tmp_path / "log"
    out = run(
        """
        import torch
        x = torch.ones(3, 3, device="tpu")
        (x + 1).cpu()
        torch.ones(3, 4, device="tpu").add(1).cpu()
        """,
        TORCH_TPU_LOG="compiles",
        TORCH_TPU_LOG_FILE=str(log),
        TORCH_TPU_CACHE="0",
    )
    lines = log.read_text().splitlines()
    assert not out and all(line.startswith("torch_tpu: compiled ") for line in lines)
    (add,) = [line for line in lines if "to (3, 4)" in line and "aten::add" in line]
    assert "at <string>:5: argument 0 of aten::add changed size from (3, 3) to (3, 4)" in add
    assert run("import torch; torch.ones(3, device='tpu')", TORCH_TPU_LOG_FILE=str(tmp_path / "none")) == ""
    assert not (tmp_path / "none").exists()


# ---- The progress line ---------------------------------------------------------------------------

# A program that XLA takes seconds for: one long chain in a single graph, of operators that don't repeat.
SLOW = """
import torch
torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)
x = torch.ones(40, 40, device="tpu")
for i in range(1, LENGTH + 1):
    x = (torch.linalg.qr(x)[0] @ x.sort(0)[0].cumsum(1)).roll(i, 0).roll(i, 1)
x.sum().item()
"""


def on_terminal(code: str, stderr_is_terminal: bool = True, **environment: str) -> tuple[str, float]:
    """What a process with a terminal for stderr wrote to it, and the longest it compiled."""
    parent, child = pty.openpty()
    code = textwrap.dedent(code) + "\nprint(max(c.seconds for c in torch.tpu.compile_report()))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCH_TPU_CACHE": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=child if stderr_is_terminal else subprocess.STDOUT,
        text=True,
    )
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(parent)
    out = process.communicate(timeout=240)[0]
    assert process.returncode == 0, seen.decode() + out
    return (seen.decode() if stderr_is_terminal else out), float(out.splitlines()[-1])


@pytest.fixture(scope="module")
def slow() -> str:
    """Code that XLA takes more than two seconds for here."""
    length = 3
    while True:
        code = SLOW.replace("LENGTH", str(length))
        _, seconds = on_terminal(code, stderr_is_terminal=False)
        if seconds > 2.7:
            return code
        length += max(1, int(length * (3.5 / seconds - 1)))


def test_progress_line(slow):
    seen, seconds = on_terminal(slow)
    assert "\rtorch_tpu: compiling fused_".replace("\r", "\r\x1b[K") in seen, (seen, seconds)
    assert ", 2 s" in seen and seen.endswith("\r\x1b[K")
    assert on_terminal("import torch; torch.ones(3, device='tpu') + 1")[0] == ""


def test_no_progress_line(slow):
    assert "\x1b[K" not in on_terminal(slow, stderr_is_terminal=False)[0]
    assert on_terminal(slow, TORCH_TPU_PROGRESS="0")[0] == ""
    logged = on_terminal(slow, TORCH_TPU_LOG="compiles")[0]
    assert "torch_tpu: compiled fused_" in logged and "\x1b[K" not in logged
