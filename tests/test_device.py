# SPDX-License-Identifier: Apache-2.0
"""torch.tpu and torch.accelerator: loading, devices, modes, autocast."""

import importlib
import os
import subprocess
import sys

import pytest
import torch
from subprocess_run import run

import torch_tpu

TPU = torch.device("tpu")


# Loading


def test_import_prints_nothing_and_opens_nothing():
    code = "import torch; assert not torch.tpu.is_initialized(); assert torch.tpu.is_available()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_by_hand():
    code = """
        import torch
        assert not hasattr(torch, "tpu")
        import torch_tpu
        import torch_tpu._loader
        torch_tpu._loader.load()
        assert torch.tpu.is_available() and torch.zeros(2, device="tpu").device.type == "tpu"
    """
    run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    run("import torch_tpu, torch; torch.tpu.device_count()")


def test_names():
    assert torch.accelerator.current_accelerator() == TPU
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.backends.tpu.is_built() and torch.backends.tpu.is_available()
    assert torch_tpu.__version__
    for name in torch.tpu.__all__:
        assert getattr(torch.tpu, name) is not None, name
    for name in ("amp", "memory", "random"):
        assert importlib.import_module(f"torch.tpu.{name}") is importlib.import_module(f"torch_tpu.tpu.{name}")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torch.tpu.nonsense  # noqa: B018


def test_client_imports():
    from torch_tpu._internal.execution_mode import EagerMode, eager_mode
    from torch_tpu._internal.stream.streams import TpuEvent
    from torch_tpu._internal.sync import synchronize
    from torch_tpu._internal.utils.hardware import get_tpu_device_count, get_tpu_device_name

    x = torch.ones(3, device="tpu")
    synchronize([x], wait=True)
    synchronize(None, wait=True)
    assert get_tpu_device_count() == torch.tpu.device_count() and get_tpu_device_name()
    TpuEvent().record()
    with eager_mode(EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]


# Devices


def test_devices():
    assert torch.accelerator.is_available() and torch.tpu.is_available()
    assert torch.accelerator.device_count() == torch.tpu.device_count() == 1
    assert torch.accelerator.current_device_index() == torch.tpu.current_device() == 0
    assert str(torch.zeros(1, device="tpu").device) == "tpu:0"
    properties = torch.tpu.get_device_properties()
    assert properties.total_memory > 1 << 20
    assert properties.name == torch.tpu.get_device_name("tpu:0") == torch.tpu.get_device_name(0)
    assert torch.tpu.is_initialized() and torch.tpu.is_bf16_supported()
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64} <= types
    assert torch.tpu.get_device_capability()["supported_dtypes"] == types


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(1, device="tpu:1"),
        lambda: torch.zeros(1).to("tpu:1"),
        lambda: torch.tpu.set_device("tpu:1"),
        lambda: torch.tpu.set_device(1),
        lambda: torch.accelerator.set_device_index(1),
        lambda: torch.tpu.synchronize(1),
        lambda: torch.tpu.memory_allocated(7),
        lambda: torch.tpu.get_device_properties("tpu:3"),
        lambda: torch.tpu.get_rng_state(1),
        lambda: torch.Generator("tpu:1"),
        lambda: torch.tpu.device(1),
        lambda: torch.Stream("tpu:1"),
        lambda: torch.tpu.current_stream(1),
    ],
)
def test_no_such_device(call):
    with pytest.raises(RuntimeError, match="device index|does not exist|there is 1"):
        call()
    assert torch.tpu.current_device() == 0


def test_wrong_device_type():
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.set_device("cpu")


def test_device_contexts():
    torch.tpu.set_device(0)
    torch.tpu.set_device("tpu")
    torch.tpu.set_device(-1)
    for context in (torch.tpu.device(0), torch.tpu.device(None), torch.accelerator.device_index(0)):
        with context:
            assert torch.tpu.current_device() == 0
    with torch.tpu.device_of(torch.zeros(1, device="tpu")), torch.tpu.device_of(torch.zeros(1)):
        assert torch.tpu.current_device() == 0
    with TPU:
        assert torch.zeros(1).is_tpu


def test_four_virtual_devices():
    code = """
        import threading
        import torch
        assert torch.accelerator.device_count() == 4
        x = torch.arange(4, device="tpu:2")
        assert x.device.index == 2 and (x + 1).tolist() == [1, 2, 3, 4]
        y = x.to("tpu:3")
        assert y.device.index == 3 and y.tolist() == [0, 1, 2, 3]
        assert x.tpu(1).device.index == 1 and x.to(0).device.index == 0
        with torch.tpu.device(3):
            assert torch.tpu.current_device() == 3
            assert torch.ones(1, device="tpu").device.index == 3
            with torch.tpu.device_of(x):
                assert torch.tpu.current_device() == 2
        assert torch.tpu.current_device() == 0
        torch.tpu.set_device("tpu:1")
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_device()))
        thread.start(); thread.join()
        assert seen == [0]   # the current device is a thread's own
        try:
            x + y
        except RuntimeError as e:
            assert "tpu:2" in str(e) and "tpu:3" in str(e), e
        else:
            raise AssertionError("tensors of two devices were added")
        assert len(torch.tpu.default_generators) == 4
        assert torch.tpu.default_generators[3].device == torch.device("tpu:3")
        torch.manual_seed(7)
        assert [g.initial_seed() for g in torch.tpu.default_generators] == [7] * 4
        assert torch.tpu.memory_allocated(2) > 0
        assert torch.tpu.memory_allocated("tpu:1") >= 0
        assert torch.Stream("tpu:2").device.index == 2
        for i in range(4):
            torch.tpu.synchronize(i)
        try:
            torch.tpu.set_device(4)
        except RuntimeError as e:
            assert "tpu:4 does not exist, there are 4 devices" in str(e), e
        else:
            raise AssertionError("tpu:4")
    """
    run(code, TORCH_TPU_VIRTUAL_DEVICES="4")


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_broken_plugin(tmp_path, content):
    path = tmp_path / "plugin.so"
    if content is not None:
        path.write_bytes(content)
    code = """
        import torch
        assert torch.accelerator.device_count() == 0
        for call in (lambda: torch.zeros(1, device="tpu"), torch.tpu.init):
            try:
                call()
            except RuntimeError as e:
                assert "no PJRT plugin" in str(e) and "TPU_LIBRARY_PATH" in str(e) and "plugin.so" in str(e), e
            else:
                raise AssertionError("a broken plugin gave a device")
        assert torch.ones(2).sum() == 2
    """
    run(code, TPU_LIBRARY_PATH=str(path))


def test_missing_plugin_lists_what_was_tried():
    code = """
        import torch
        from torch_tpu import _C
        _C.set_bundled_plugin("/nowhere/plugin.so")
        assert not torch.tpu.is_available()
        try:
            torch.tpu.init()
        except RuntimeError as e:
            assert "libtpu: " in str(e) and "bundled CPU plugin: there is no file /nowhere/plugin.so" in str(e), e
        else:
            raise AssertionError
    """
    run(code, TPU_LIBRARY_PATH="")


def test_bad_switch_names_itself():
    code = """
        import torch
        try:
            torch.tpu.init()
        except (RuntimeError, ValueError) as e:
            assert "TORCH_TPU_VIRTUAL_DEVICES" in str(e) and "many" in str(e), e
        else:
            raise AssertionError
    """
    run(code, TORCH_TPU_VIRTUAL_DEVICES="many")


def test_command_line(tmp_path):
    def call(*arguments):
        command = [sys.executable, "-m", "torch_tpu", *arguments]
        environment = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_DEBUG": "0"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    report = call()
    for part in ("torch_tpu:", "PJRT API:", "tpu:0:", "DEFER_NEVER", str(tmp_path), "TORCH_TPU_DEBUG=0"):
        assert part in report, report
    assert "TORCH_TPU_CACHE_DIR = " + str(tmp_path) in call("env")
    assert "0 programs" in call("cache", "clear")


# Modes, precision, autocast


def test_modes():
    mode = torch.tpu.EagerMode
    assert [m.name for m in mode] == ["DEFER_NEVER", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_AND_FUSE"]
    before = torch.tpu.eager_mode
    try:
        torch.tpu.set_eager_mode(mode.DEFER_NEVER_AND_LAUNCH_BLOCKING)
        assert torch.tpu.eager_mode is mode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    finally:
        torch.tpu.set_eager_mode(before)
    with pytest.raises(ValueError, match="not a valid EagerMode"):
        torch.tpu.set_eager_mode(3)


def test_metrics():
    torch.tpu.reset_metrics()
    assert torch.tpu.fallback_stats() == {}
    x = torch.ones(17, 3, device="tpu")
    (x + x).cpu()
    assert torch.tpu.metrics()["launches"] >= 1


def test_precision():
    before = torch.get_float32_matmul_precision()
    with torch.tpu.precision(torch.tpu.Precision.HIGH):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with torch.tpu.allow_excess_precision(True):
        assert torch_tpu._C.allow_excess_precision()
    assert not torch_tpu._C.allow_excess_precision()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_autocast(dtype):
    a, b = torch.rand(4, 4, device="tpu"), torch.rand(4, 4, device="tpu")
    want = dtype or torch.bfloat16
    with torch.autocast("tpu", dtype=dtype):
        low = a @ b
        assert low.dtype == want
        assert torch.nn.functional.linear(a, b).dtype == want
        assert low.exp().dtype == low.sum().dtype == torch.float32
        assert torch.nn.functional.softmax(low, -1).dtype == torch.float32
        assert low.norm().dtype == torch.float32
        assert torch.addcmul(a, low, low).dtype == torch.float32
        assert (low + low).dtype == want
        with torch.autocast("tpu", enabled=False):
            assert (a @ b).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(torch.sigmoid(a), b)
    assert (a @ b).dtype == torch.float32
    with torch.tpu.amp.autocast():
        assert (a @ b).dtype == torch.bfloat16
    with pytest.warns(UserWarning, match="Disabling autocast"), torch.autocast("tpu", dtype=torch.float64):
        assert (a @ b).dtype == torch.float32


def test_grad_scaler():
    model = torch.nn.Linear(4, 1).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.tpu.amp.GradScaler(init_scale=256.0)
    before = model.weight.detach().cpu().clone()
    with torch.autocast("tpu", dtype=torch.float16):
        loss = model(torch.ones(2, 4, device="tpu")).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model.weight.detach().cpu(), before)
    optimizer.zero_grad()
    scaler.scale(model(torch.full((2, 4), float("inf"), device="tpu")).sum()).backward()
    kept = model.weight.detach().cpu().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight.detach().cpu(), kept) and scaler.get_scale() == 128.0


def test_module_keeps_its_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    called = []
    handle = model[0].weight.register_hook(lambda grad: called.append(grad.device.type))
    model[0].weight.register_post_accumulate_grad_hook(lambda weight: called.append(weight.grad.device.type))
    model.to("tpu")
    assert model[0].weight is model[1].weight and model[0].weight.is_tpu
    before = model[0].weight.detach().cpu().clone()
    model(torch.ones(2, 3, device="tpu")).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight.detach().cpu(), before)
    assert called == ["tpu", "tpu"]
    handle.remove()
    model(torch.ones(2, 3, device="tpu")).sum().backward()
    assert called == ["tpu"] * 3
    assert model.cpu()[0].weight is model[1].weight
    assert model.tpu()[0].weight.is_tpu
