# SPDX-License-Identifier: Apache-2.0
"""Many threads, forks, interrupts and exits: nothing hangs, nothing ends the process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from subprocess_run import run

THREADS = 16


def in_threads(work, count=THREADS):
    start = threading.Barrier(count)

    def go(i):
        start.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return [f.result(timeout=120) for f in [pool.submit(go, i) for i in range(count)]]


def test_mixed_operators():
    def work(i):
        torch.manual_seed(0)
        host = torch.arange(1.0, 65).reshape(8, 8) / 64 + i
        x = host.to("tpu")
        for step in range(12):
            y = (x @ x.t()).softmax(-1) + x[step % 8, 1:5].sum() * (i + step)
            y[step % 8].fill_(i)
            y.view(-1)[i :: i + 2].add_(1)
            h = (host @ host.t()).softmax(-1) + host[step % 8, 1:5].sum() * (i + step)
            h[step % 8].fill_(i)
            h.view(-1)[i :: i + 2].add_(1)
            torch.testing.assert_close(y.cpu(), h, rtol=1e-4, atol=1e-4)
        return y.sum().item()

    assert len(in_threads(work)) == THREADS


def test_one_new_program_for_all():
    """All threads meet the same new operator and shape at once."""
    x = torch.arange(97.0, device="tpu")
    results = in_threads(lambda i: (x.sinh().cumsum(0) * 3 - x.sqrt()).sum().item())
    assert len(set(results)) == 1


def test_writes_to_one_tensor():
    """A race that a program must not have; each thread sees some state, and nothing breaks."""
    x = torch.zeros(1000, device="tpu")
    failures = []

    def work(i):
        for _ in range(40):
            try:
                x.add_(1)
                x[i * 10 : i * 10 + 10].mul_(0.5)
                x.copy_(torch.full((1000,), float(i)))
                assert (x * 2).cpu().isfinite().all()
                x.view(10, 100).t().add_(1)
                x.sum().item()
            except Exception as e:  # noqa: BLE001
                failures.append(e)

    in_threads(work)
    assert not failures, failures[:3]
    x.fill_(3)
    assert x.eq(3).all()


def test_readers_and_one_writer():
    """Readers see a whole old or a whole new value, never a mixture or freed memory."""
    x = torch.zeros(1 << 14, device="tpu")
    stop = threading.Event()

    def work(i):
        if i == 0:
            try:
                for _ in range(150):
                    x.add_(1)
            finally:
                stop.set()
            return 0
        seen = 0
        while not stop.is_set():
            y = x.cpu() if i % 2 else (x + 0).cpu()
            assert y.min() == y.max(), "a mixture of two values"
            assert y[0] >= seen
            seen = y[0].item()
        return seen

    in_threads(work, 6)
    assert x.eq(150).all()


def test_resizes_and_writes_to_one_storage():
    """Geometry and value change under the readers: errors may come, no crash."""
    x = torch.zeros(64, device="tpu")

    def work(i):
        for step in range(30):
            try:
                if i % 4 == 0:
                    x.untyped_storage().resize_(256 + 256 * (step % 2))
                elif i % 4 == 1:
                    x.view(torch.int32).fill_(step)
                else:
                    (x[::2] + 1).cpu()
            except RuntimeError:
                pass

    in_threads(work, 8)
    assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]


def test_backward_in_threads():
    w = torch.ones(8, 8, device="tpu", requires_grad=True)

    def work(i):
        x = torch.full((8, 8), float(i), device="tpu")
        (g,) = torch.autograd.grad((x @ w).sum(), w)
        return g[0, 0].item()

    assert in_threads(work) == [8.0 * i for i in range(THREADS)]
    in_threads(lambda i: (w * 1).sum().backward())
    assert w.grad[0, 0].item() == THREADS


def test_errors_in_threads():
    x = torch.ones(4, device="tpu")

    def work(i):
        for _ in range(20):
            with pytest.raises(RuntimeError):
                x + torch.ones(5 + i, device="tpu")
            with pytest.raises(IndexError):
                x[torch.tensor([4 + i], device="tpu")].cpu()
        return (x + i).sum().item()

    assert in_threads(work) == [4.0 + 4 * i for i in range(THREADS)]


def test_tensors_die_in_other_threads():
    kept = [torch.ones(100, device="tpu") + i for i in range(64)]

    def work(i):
        while kept:
            try:
                x = kept.pop()
            except IndexError:
                break
            y = x.add_(1).view(10, 10).t()
            del x
            assert y.sum().item() >= 200

    in_threads(work)


def test_device_and_stream_are_per_thread():
    run(
        """
        import threading, torch
        torch.tpu.set_device(1)
        seen = []
        def work():
            seen.append(torch.tpu.current_device())
            torch.tpu.set_device(2)
            x = torch.ones(3, device="tpu")
            seen.append(x.device.index)
        t = threading.Thread(target=work); t.start(); t.join()
        assert seen == [0, 2], seen
        assert torch.tpu.current_device() == 1 and torch.ones(1, device="tpu").device.index == 1
        """,
        TORCH_TPU_VIRTUAL_DEVICES="3",
    )


FORKED = """
    import os, signal, threading, torch
    x = torch.ones(1000, device="tpu", requires_grad=True)
    (x * 2).sum().backward()
    {before}
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        code = 1
        try:
            {child}
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status
    assert (x + 1).sum().item() == 2000
    print("well")
"""

BUSY = """stop = threading.Event()
    def busy():
        while not stop.is_set():
            y = torch.ones(50, device="tpu"); y.add_(1); y.cpu()
    threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
    [t.start() for t in threads]
    import time; time.sleep(0.3)"""

CHILD = """w = torch.ones(3, 3)
            assert (w @ w).sum() == 27 and torch.randn(3).shape == (3,)
            for use in (lambda: x + 1, lambda: torch.zeros(1, device="tpu"), lambda: x.cpu(),
                        lambda: torch.ones(2).to("tpu"),
                        lambda: x.detach().fill_(1), lambda: x.sum().item(), lambda: torch.randn(2, device="tpu"),
                        lambda: repr(x), lambda: (x * 2).sum().backward()):
                try:
                    use()
                except RuntimeError as e:
                    assert "fork" in str(e), e
                else:
                    raise AssertionError
            import gc
            del x
            gc.collect()
            assert (w @ w).sum() == 27"""


@pytest.mark.parametrize("before", ["pass", BUSY], ids=["idle", "busy"])
def test_fork(before):
    """The child computes on the CPU, is refused the device, and frees what it inherited."""
    out = run(FORKED.format(before=before, child=CHILD) + ("\n    stop.set()" if before == BUSY else ""))
    assert "well" in out


def test_keyboard_interrupt():
    run(
        """
        import signal, threading, os, time, torch
        x = torch.ones(64, 64, device="tpu")
        (x @ x).softmax(-1).add_(1)                  # what is imported at first
        for attempt in range(3):
            pid = os.getpid()
            interrupted = threading.Event()
            def send():  # again after a while: Python drops an interrupt that lands in a finalizer
                while not interrupted.wait(0.2 if first else 1):
                    os.kill(pid, signal.SIGINT)
                    first.clear()
            first = [True]
            threading.Thread(target=send, daemon=True).start()
            try:
                end = time.time() + 20
                while time.time() < end:
                    x = (x @ x).softmax(-1)
                    x.add_(1)
                raise AssertionError("no interrupt")
            except KeyboardInterrupt:
                interrupted.set()
            x = torch.ones(64, 64, device="tpu")
            assert (x + 1).sum().item() == 2 * 64 * 64
        """
    )


@pytest.mark.parametrize(
    "ending",
    [
        """import atexit, weakref
        atexit.register(lambda: print(x.sum().item()))
        weakref.finalize(x, lambda: None)
        holder = [x]; holder.append(holder)
        import builtins; builtins.kept = [torch.ones(3, device='tpu') + i for i in range(50)]""",
        "t = __import__('threading').Thread(target=lambda: [(x + i).cpu() for i in range(300)]); t.start()",
        "x.requires_grad_(); y = (x * 2).sum(); y.register_hook(lambda g: g); y.backward(); import sys; sys.exit(0)",
        """e = torch.tpu.Event(); e.record(); s = torch.tpu.Stream()
        class A:
            def __del__(self): self.x.add_(1)
        a = A(); a.x = x; a.a = a""",
    ],
    ids=["atexit", "thread", "backward", "del"],
)
def test_exit_with_work_in_flight(ending):
    run(
        f"""
        import torch
        x = torch.ones(600, 600, device="tpu")
        for _ in range(20):
            x = (x @ x) / 600
        out = torch.empty(600, 600, pin_memory=True)
        out.copy_(x, non_blocking=True)
        {ending}
        """
    )


def test_exit_before_use():
    run("import torch; torch.tpu.is_available(); x = torch.tpu.device_count()")


def test_late_loading_and_backward_on_the_cpu_first():
    """Loaded by hand after the autograd engine has started."""
    run(
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        (w * 2).sum().backward()
        import torch_tpu
        v = torch.ones(3, device="tpu", requires_grad=True)
        (v * 2).sum().backward()
        assert v.grad.tolist() == [2, 2, 2]
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_module_in_threads():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    host = torch.randn(4, 8)
    with torch.no_grad():
        expected = net(host)
    net.to("tpu")

    def work(i):
        with torch.no_grad():
            torch.testing.assert_close(net(host.to("tpu")).cpu(), expected, rtol=1e-4, atol=1e-5)

    in_threads(work)


def test_gil_is_released_while_waiting():
    """A long program must not stop other Python threads."""
    x = torch.ones(1200, 1200, device="tpu")
    (x @ x).cpu()
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    t = threading.Thread(target=tick)
    t.start()
    for _ in range(8):
        y = x
        for _ in range(4):
            y = y @ x / 1200
        y.cpu()
    done.set()
    t.join()
    gaps = [b - a for a, b in zip(ticks, ticks[1:], strict=False)]
    assert max(gaps) < 5
