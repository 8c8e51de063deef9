# SPDX-License-Identifier: Apache-2.0
"""torch.profiler over the device: what runs there, when, for which operator and line."""

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from torch_tpu._internal.profiler import TpuProfilerConfig

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def work(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sum()


@pytest.fixture
def operands() -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.randn(16, 32, device="tpu"), torch.randn(32, 8, device="tpu", requires_grad=True)
    work(x, w).backward()  # programs are made before the profile
    return x, w


def events(folder: Path, profiled: profile) -> list[dict]:
    profiled.export_chrome_trace(str(folder / "trace.json"))
    return json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_device_activity_has_operators_and_lines(operands, tmp_path: Path) -> None:
    with profile(activities=BOTH) as profiled, record_function("a step"):
        loss = work(*operands)
        loss.backward()
        loss.item()
    found = events(tmp_path, profiled)
    kernels = [e for e in found if e.get("cat") == "kernel"]
    names = [e["name"] for e in kernels]
    assert {"aten::mm", "aten::relu", "aten::sum"} <= set(names)
    assert names.count("aten::mm") == 2  # and one in backward
    assert all(Path(__file__).name in e["args"]["line"] for e in kernels)
    last = 0.0
    for e in sorted(kernels, key=lambda e: e["ts"]):  # one after the other
        assert e["ts"] >= last - 0.01 and e["dur"] >= 0
        last = e["ts"] + e["dur"]
    (download,) = [e for e in found if e.get("cat") == "gpu_memcpy"]
    assert download["name"] == "download" and download["args"]["bytes"] == 4
    assert any(e.get("name") == "process_name" and e["args"]["name"] == "tpu:0" for e in found)


def test_operators_have_device_time(operands) -> None:
    with profile(activities=BOTH) as profiled:
        work(*operands)
    rows = {row.key: row for row in profiled.key_averages()}
    assert rows["aten::mm"].device_time_total > 0
    assert "TPU" in profiled.key_averages().table()


def test_default_activities_have_the_device(operands) -> None:
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
    with profile() as profiled:
        work(*operands)
    assert any(e.device_type == torch.autograd.DeviceType.PrivateUse1 for e in profiled.events())


def test_without_the_device_nothing_of_it(operands, tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work(*operands)
    assert not [e for e in events(tmp_path, profiled) if e.get("cat") == "kernel"]


def test_compiled_and_fused(operands, tmp_path: Path, fresh_dynamo: None) -> None:
    compiled = torch.compile(work, backend="tpu")
    with torch.no_grad():
        compiled(*operands)
        with profile(activities=BOTH) as profiled:
            compiled(*operands)
    assert [e["name"] for e in events(tmp_path, profiled) if e.get("cat") == "kernel"] == ["tpu::compiled"]
    mode = torch.tpu.eager_mode
    torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)
    try:
        with torch.no_grad():
            for _ in range(3):  # a graph met once runs operator by operator
                work(*operands).item()
            with profile(activities=BOTH) as profiled:
                kept = work(*operands)  # what nobody holds is not computed
    finally:
        torch.tpu.set_eager_mode(mode)
    assert kept.isfinite()
    names = [e["name"] for e in events(tmp_path, profiled) if e.get("cat") == "kernel"]
    assert len(names) == 1 and names[0].startswith("fused mm, relu"), names


def test_config(operands, tmp_path: Path) -> None:
    with torch.tpu.profiler.trace(tmp_path, TpuProfilerConfig(python_lines=False, transfers=False)):
        work(*operands).item()
    (file,) = tmp_path.glob("*.pt.trace.json")
    found = json.loads(file.read_text())["traceEvents"]
    kernels = [e for e in found if e.get("cat") == "kernel"]
    assert kernels and not any("line" in e["args"] for e in kernels)
    assert not [e for e in found if e.get("cat") == "gpu_memcpy"]
    with profile(activities=BOTH) as profiled:  # as before
        work(*operands).item()
    assert [e for e in events(tmp_path, profiled) if e.get("cat") == "gpu_memcpy"]


def test_schedule_and_threads(operands) -> None:
    steps = []
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=lambda p: steps.append(len(p.events()))) as profiled:
        for _ in range(5):
            work(*operands).backward()
            profiled.step()
    assert len(steps) == 1 and steps[0] > 0
