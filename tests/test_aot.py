# SPDX-License-Identifier: Apache-2.0
"""torch_tpu.aot: reports, the watched program, and the faults of a compiler in another process, done for real."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import conformance
import pytest
import torch
from subprocess_run import run
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from torch_tpu import aot
from torch_tpu.aot import _client, _watch, worker

needs_libtpu = pytest.mark.skipif(not conformance.libtpu_installed(), reason="libtpu is not installed")
pytestmark = [pytest.mark.timeout(900, method="thread"), pytest.mark.xdist_group("libtpu")]

ADD = """module @add {
  func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = "stablehlo.add"(%a, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    "func.return"(%0) : (tensor<8x8xf32>) -> ()
  }
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ALLOW_MULTIPLE_LIBTPU_LOAD", raising=False)
    yield tmp_path / "cache"
    _client.compiler.close()


class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.norm = nn.BatchNorm1d(4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(self.norm(self.up(x)).relu())


class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).float().square().mean()


# ---- Reports -----------------------------------------------------------------------------------


@needs_libtpu
@pytest.mark.parametrize("device", ["meta", "cpu", "tpu"])
def test_forward(device):
    net = Net().to(device).to(torch.bfloat16).eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    report = aot.compile(net, (torch.empty(512, 256, device=device, dtype=torch.bfloat16),))
    assert report.fits and report.topology == "TPU7x:2x2x1" and report.chip is aot.CHIPS["TPU7x"]
    assert report.product_flops == 2 * 2 * 512 * 256 * 1024
    assert report.flops >= report.product_flops
    weights = sum(v.numel() * 2 for k, v in net.state_dict().items() if "num_batches" not in k)
    assert weights + 512 * 256 * 2 <= report.argument_bytes < 1.1 * weights + 512 * 256 * 2
    assert report.output_bytes == 512 * 256 * 2 and report.aliased_bytes == 0
    assert report.memory_limit > 90 << 30 and report.peak_bytes < report.memory_limit
    assert report.seconds >= report.roofline_seconds > 0 and 0 < report.mfu < 1
    assert report.mfu == pytest.approx(report.product_flops / report.seconds / report.chip.device_flops)
    assert "ENTRY" in report.optimized_hlo and report.serialized and "stablehlo.dot_general" in report.stablehlo
    assert {name for name, _ in report.inputs} >= {"up.weight", "down.bias", "norm.running_mean", "args[0]"}
    assert any("convolution" in what for what, _, _ in report.choices)
    text = str(report)
    assert "not measured" in text and "Google Cloud" in text
    for k, v in net.state_dict().items():  # neither run nor moved
        assert v.device.type == device
        if device != "meta":
            torch.testing.assert_close(v, before[k])


@needs_libtpu
def test_backward_and_training_step():
    net = Net().to("meta", torch.bfloat16)
    x = torch.empty(64, 256, device="meta", dtype=torch.bfloat16, requires_grad=True)
    forward = aot.compile(net, (x,), topology="v6e:2x2")
    backward = aot.compile(net, (x,), topology="v6e:2x2", backward=True)
    assert backward.product_flops == 3 * forward.product_flops
    # The output, a gradient for each parameter and for x, and the statistics of the norm.
    assert len(backward.outputs) == 1 + 6 + 1 + 3
    assert ("gradient of result 0", "bf16[64,256]") in backward.inputs
    assert backward.donated == 3  # the running statistics and their count
    for optimizer in (torch.optim.AdamW, lambda p: torch.optim.AdamW(p, lr=1e-3)):
        step = aot.compile(Loss(net), (x.detach(),), topology="v6e:2x2", optimizer=optimizer)
        assert step.donated == 3 + 3 * 6  # and parameters with two moments each
        assert step.aliased_bytes >= 3 * sum(p.numel() * 2 for p in net.parameters())
        assert any("exp_avg_sq" in name for name, _ in step.inputs)
    live = Net()
    instance = torch.optim.SGD(
        [{"params": live.up.parameters(), "lr": 1.0}, {"params": live.down.parameters()}], lr=0.1
    )
    step = aot.compile(Loss(live), (torch.empty(4, 256),), topology="v6e:2x2", optimizer=instance)
    assert step.donated == 3 + 4  # the norm's parameters are in no group
    assert all(p.grad is None for p in live.parameters()) and not instance.state


@needs_libtpu
@pytest.mark.parametrize("backward", [False, True])
def test_model_of_transformers(backward):
    """It reads values of its mask unless it is told that it is being compiled."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        ids = torch.zeros(1, 64, dtype=torch.int64)
    report = aot.compile(model, (ids,), {"use_cache": False, "labels": ids if backward else None}, backward=backward)
    assert report.fits and report.mfu > 0 and not torch.compiler.is_compiling()


@needs_libtpu
def test_loops_count_as_often_as_they_run():
    x = torch.empty(1024, 1024, device="tpu", dtype=torch.bfloat16)
    product = 2 * 1024**3

    def passes(state, weight, times):
        zero = torch.zeros((), dtype=torch.int64, device=state.device)

        def inner(i, c):
            return i + 1, torch.tanh(c @ weight)

        def outer(i, c):
            return i - 2, while_loop(lambda i, c: i < 5, inner, (zero, c))[1]

        return while_loop(lambda i, c: i > 0, outer, (torch.full_like(zero, 2 * times), state))[1]

    def rows(state, weight, xs):
        return scan(lambda c, row: (torch.tanh(c @ weight) + row, row.sum()), state, xs)

    once = aot.compile(lambda c, w: torch.tanh(c @ w), (x, x))
    scanned = aot.compile(rows, (x, x, torch.empty(16, 1024, 1024, device="tpu", dtype=torch.bfloat16)))
    assert scanned.product_flops == 16 * product and scanned.mfu is not None
    assert scanned.seconds > 8 * once.seconds and any("1 loops" in c for c in scanned.corrections)
    two, four = (aot.compile(lambda c, w, n=n: passes(c, w, n), (x, x)) for n in (2, 4))
    assert two.product_flops == 10 * product and four.product_flops == 20 * product
    assert 1.5 < four.seconds / two.seconds < 2.5 and four.mfu is not None

    def open_ended(state):
        return while_loop(lambda c: c.sum() < 10, lambda c: (c * 2,), (state,))

    report = aot.compile(open_ended, (x,))
    assert report.mfu is None and any("lower bound" in c for c in report.corrections)


@needs_libtpu
def test_exported_program():
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).eval()
    exported = torch.export.export(net, (torch.empty(64, 128),))
    report = aot.compile(exported.module(), (torch.empty(64, 128),), topology="v6e:2x2")
    assert report.product_flops == 2 * 2 * 64 * 128 * 256
    assert {name for name, _ in report.inputs} >= {"0.weight", "2.bias"}


@needs_libtpu
def test_functions_and_float32():
    weight = torch.randn(128, 128, device="tpu")
    before = weight.cpu()

    def f(x, *, scale):
        weight.mul_(scale)
        return {"y": x @ weight, "z": torch.nn.functional.dropout(x, 0.5)}

    report = aot.compile(f, torch.empty(128, 128), {"scale": 2.0}, topology="v5e:2x2")
    torch.testing.assert_close(weight.cpu(), before)  # written to in the program alone
    assert len(report.outputs) == 3 and report.donated == 1
    assert any("float32" in text for text in report.corrections)
    torch.set_float32_matmul_precision("medium")
    try:
        fast = aot.compile(f, torch.empty(128, 128), {"scale": 2.0}, topology="v5e:2x2")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert fast.seconds < report.seconds and not any("float32" in text for text in fast.corrections)


@needs_libtpu
def test_tied_weights_are_one_argument():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            self.head = nn.Linear(32, 100, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.embed(i))

    report = aot.compile(Tied().to("meta"), torch.empty(8, dtype=torch.int64, device="meta"), topology="v5p:2x2x1")
    assert len(report.inputs) == 2


@needs_libtpu
def test_too_large():
    net = Net(4096).to("meta", torch.bfloat16)
    x = torch.empty(4_000_000, 4096, device="meta", dtype=torch.bfloat16)
    report = aot.compile(net, (x,), topology="v5e:2x2", backward=True)
    assert not report.fits and report.over_bytes > 10 << 30 and math.isnan(report.seconds)
    assert "more than the" in str(report)
    what, size = report.largest[0]
    assert size == 4_000_000 * 4 * 4096 * 4 and "test_aot.py" in what  # the norm, in float32


@needs_libtpu
@pytest.mark.parametrize("name", ["v6e", "v9:2x2", "TPU7x:2x2", "v6e:2x2x2", "v6e:0x2", "v6e:3x3", "", None])
def test_no_such_topology(name):
    with pytest.raises(ValueError, match="v6e"):
        aot.compile(torch.neg, torch.empty(4), topology=name)


@needs_libtpu
@pytest.mark.parametrize("name", ["tpu7x:2x2x1", "v5e:4x8", "v5litepod:2x2", " v6e:1x1 "])
def test_spellings(name):
    assert aot.compile(torch.neg, torch.empty(4), topology=name).fits


@needs_libtpu
def test_what_cannot_be_traced():
    with pytest.raises(RuntimeError, match="being traced"):
        aot.compile(lambda x: x if x.sum() > 0 else -x, torch.empty(4))
    with pytest.raises(RuntimeError, match="result 0 is on cpu"):
        aot.compile(lambda x: torch.ones(3), torch.empty(4))
    with pytest.raises(RuntimeError, match="no result requires a gradient"):
        aot.compile(torch.neg, torch.empty(4), backward=True)
    with pytest.raises(RuntimeError, match="one scalar"):
        aot.compile(Net(), torch.empty(4, 256), optimizer=torch.optim.SGD)
    with pytest.raises(TypeError, match="needs a module"):
        aot.compile(torch.neg, torch.empty(4), optimizer=torch.optim.SGD)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        aot.compile(Net(), torch.empty(4, 255))
    # The device works as before.
    assert (torch.ones(3, device="tpu") + 1).sum().item() == 6


def test_without_libtpu():
    out = run("""
        import sys
        sys.modules["libtpu"] = None  # what an import finds where it isn't installed
        import torch, torch_tpu.aot
        try:
            torch_tpu.aot.compile(torch.neg, torch.empty(4))
        except RuntimeError as error:
            print(error)
    """)
    assert "pip install libtpu" in out


# ---- A watched program -------------------------------------------------------------------------


def watched(tmp_path: Path, script: str, *arguments: str, topology: str = "v6e:2x2") -> subprocess.CompletedProcess:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch_tpu", "aot", "--topology", topology, str(file), "--", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


SCRIPT = """
import sys
import torch

x = torch.randn(4, 4, device="tpu", requires_grad=True)
y = x.exp()
(y @ y).sum().backward()
print("ran", *sys.argv[1:], x.grad.shape)
"""


@needs_libtpu
def test_watch(tmp_path, cache):
    first = watched(tmp_path, SCRIPT, "--fast", "1")
    assert first.returncode == 0, first.stderr
    assert "ran --fast 1 torch.Size([4, 4])" in first.stdout
    assert " fail" in first.stderr and "0 fail (0 known from before" in first.stderr
    assert f"aten::mm at {tmp_path / 'script.py'}:7" in first.stderr  # autograd's thread has the line of backward()
    # Verdicts are kept, but for a damaged one.
    files = sorted((cache / "aot").glob("*.json"))
    files[0].write_text(files[0].read_text()[:10])
    again = watched(tmp_path, SCRIPT)
    assert again.returncode == 0 and f"0 fail ({len(files) - 1} known from before" in again.stderr
    assert json.loads(files[0].read_text())["failure"] == ""


@needs_libtpu
def test_watch_tells_failures(tmp_path, cache):
    """No program that we know of fails, so the verdict on one is made a refusal."""
    assert watched(tmp_path, SCRIPT).returncode == 0
    for file in (cache / "aot").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "failure": "refused"}))
    done = watched(tmp_path, SCRIPT)
    assert done.returncode == 1 and "ran" in done.stdout
    assert f"FAILS aten::exp at {tmp_path / 'script.py'}:6: refused" in done.stderr


@needs_libtpu
def test_exit_code_is_the_programs(tmp_path):
    assert watched(tmp_path, "import torch; raise SystemExit(7)").returncode == 7
    killed = watched(tmp_path, "import os, torch; os.kill(os.getpid(), 9)")
    assert killed.returncode != 0 and "without a table" in killed.stderr


@needs_libtpu
def test_watch_and_fork(tmp_path):
    done = watched(
        tmp_path,
        """
        import os, torch
        x = torch.ones(3, device="tpu") + 1
        if os.fork() == 0:
            raise SystemExit(0)
        os.wait()
        print(x.sum().item())
        """,
    )
    assert done.returncode == 0 and done.stdout.strip() == "6.0"
    assert done.stderr.count("programs for") == 1


def test_wrong_topology_at_the_command_line(tmp_path):
    done = watched(tmp_path, SCRIPT, topology="v6e")
    assert done.returncode == 2 and "valid are" in done.stdout


# ---- Faults ------------------------------------------------------------------------------------


@needs_libtpu
def test_killed_worker():
    _watch.judge(ADD, "v6e:2x2")
    os.kill(_client.compiler._worker.pid, signal.SIGKILL)
    _client.compiler._worker.wait()
    assert _client.compiler.compile(ADD, "v6e:2x2")["memory"]["outputs"] > 0  # a new one
    worker_now = _client.compiler._worker
    threading.Timer(0.5, worker_now.send_signal, [signal.SIGSTOP]).start()
    threading.Timer(3.0, worker_now.kill).start()
    with pytest.raises(aot.CompileError, match="signal 9") as caught:
        for n in range(2000):
            _client.compiler.compile(ADD.replace("8x8", f"8x{8 + n}"), "v6e:2x2")
    assert caught.value.crashed
    assert _client.compiler.compile(ADD, "v6e:2x2")["memory"]["outputs"] > 0


@needs_libtpu
def test_a_program_that_kills_the_compiler():
    text = ADD.replace("8x8x", "?x8x")
    verdict = _watch.judge(text, "v6e:2x2")
    assert verdict.failure  # refused or died of; we live
    assert not _watch.judge(ADD, "v6e:2x2").failure


@needs_libtpu
@pytest.mark.parametrize("text", ["", "no module", "module {}", ADD.replace("add", "subbb"), ADD[:60]])
def test_no_program(text):
    assert _watch.judge(text, "v6e:2x2").failure
    assert not _watch.judge(ADD, "v6e:2x2").failure


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@needs_libtpu
def test_two_users_at_once():
    _client.compiler.close()
    wait_until_free()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, worker.LOCK, "6"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(aot.CompilerBusy, match=f"(?s)process {holder.pid} .*for 1 s"):
            aot.compile(torch.neg, torch.empty(4), topology="v6e:2x2", wait=1)
        told = []
        reply = _client.compiler.compile(ADD, "v6e:2x2", on_wait=told.append)
        assert reply["memory"]["outputs"] > 0 and holder.wait() == 0
        assert len(told) == 1 and f"process {holder.pid}" in told[0]
    finally:
        holder.kill()


@needs_libtpu
def test_stale_lock():
    """The lock's file can't be opened and nobody holds it: left behind by somebody else."""
    _client.compiler.close()
    wait_until_free()
    Path(worker.LOCK).unlink(missing_ok=True)
    os.mkdir(worker.LOCK)
    try:
        assert _client.compiler.compile(ADD, "v6e:2x2")["memory"]["outputs"] > 0
        assert not os.path.isdir(worker.LOCK)
    finally:
        if os.path.isdir(worker.LOCK):
            os.rmdir(worker.LOCK)


@needs_libtpu
def test_lets_go_when_idle():
    _client.compiler.compile(ADD, "v6e:2x2")
    deadline = time.monotonic() + 30
    while _client.compiler._worker is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _client.compiler._worker is None


@needs_libtpu
def test_threads():
    replies = []
    threads = [
        threading.Thread(
            target=lambda n=n: replies.append(_client.compiler.compile(ADD.replace("8x8", f"8x{8 + n}"), "v6e:2x2"))
        )
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 6


@needs_libtpu
def test_worker_goes_with_its_owner(tmp_path):
    out = run(f"""
        import os
        from torch_tpu.aot import _client
        _client.compiler.compile({ADD!r}, "v6e:2x2")
        print(_client.compiler._worker.pid, flush=True)
        os._exit(0)  # no handler runs
    """)
    pid = int(out)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_free():
    deadline = time.monotonic() + 600
    while worker.lock_holder() is not None and time.monotonic() < deadline:
        time.sleep(0.1)
