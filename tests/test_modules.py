# SPDX-License-Identifier: Apache-2.0
"""Every entry of PyTorch's module_db: outputs and gradients on tpu against the CPU, in eager and compiled (one sample;
of every fourth entry without TORCH_TPU_TEST_GRID=1). See expected_failures.txt."""

import copy
from typing import Any

import conformance
import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

pytestmark = [pytest.mark.timeout(60, method="thread"), pytest.mark.filterwarnings("ignore")]

RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
          "FractionalMaxPool2d", "FractionalMaxPool3d"}  # fmt: skip


def gradients(module: torch.nn.Module, inputs: Any, outs: Any, device: str) -> list[torch.Tensor | None]:
    outs = [t for t in conformance.tensors(outs) if t.requires_grad]
    ins = [t for t in conformance.tensors(inputs) if t.requires_grad]
    ins += [p for p in module.parameters() if p.requires_grad]
    if not outs or not ins:
        return []
    conformance.seed(1)
    cotangents = [torch.randn(t.shape, dtype=t.dtype).to(device) for t in outs]
    return list(torch.autograd.grad(outs, ins, cotangents, allow_unused=True))


def check(
    info: ModuleInfo, training: bool, dtype: torch.dtype = torch.float32, samples: int = 4, compiled: bool = False
) -> int:
    """Returns how many samples the CPU could run."""
    ran = 0
    conformance.seed(0)
    made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    for n, sample in enumerate(made):
        if ran == samples:
            break
        conformance.seed(n)
        cpu = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        cpu.train(training)
        tpu = copy.deepcopy(cpu).to("tpu")
        inputs = (sample.forward_input.args, sample.forward_input.kwargs)
        moved = conformance.on_tpu(inputs)
        try:
            want = cpu(*inputs[0], **inputs[1])
        except Exception:
            continue
        ran += 1
        if "Lazy" in info.name:  # makes its parameters at the first call, each device its own
            with torch.no_grad():
                tpu(*moved[0], **moved[1])
            conformance.alike(dict(tpu.named_parameters()), dict(cpu.named_parameters()))
            tpu.load_state_dict(cpu.state_dict())
        run = torch.compile(tpu, backend="tpu") if compiled else tpu
        got = run(*moved[0], **moved[1])
        grads, moved_grads = gradients(cpu, inputs, want, "cpu"), gradients(tpu, moved, got, "tpu")
        if training and info.name.removeprefix("nn.") in RANDOM:
            conformance.alike((got, moved_grads), (want, grads))
            continue
        tolerance = conformance.tolerance(info, dtype)
        conformance.close(got, want, f"sample {n}", **tolerance)
        conformance.close(moved_grads, grads, f"gradients of sample {n}", **tolerance)
        conformance.close(dict(tpu.named_buffers()), dict(cpu.named_buffers()), f"buffers of sample {n}", **tolerance)
    return ran


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_module(info: ModuleInfo, training: bool) -> None:
    if torch.float32 not in info.dtypes:
        pytest.skip("has no float32")
    if not training and not info.train_and_eval_differ:
        pytest.skip("training and evaluation are the same")
    if not check(info, training):
        pytest.skip("no sample that the CPU runs")


@pytest.mark.parametrize(
    "info",
    [pytest.param(m, id=m.name, marks=[pytest.mark.grid] if n % 4 else []) for n, m in enumerate(module_db)],
)
def test_compiled_module(info: ModuleInfo) -> None:
    if torch.float32 not in info.dtypes:
        pytest.skip("has no float32")
    torch.compiler.reset()
    if not check(info, True, samples=1, compiled=True):
        pytest.skip("no sample that the CPU runs")


def test_data_from_the_other_device():
    """`x.data = y` between the CPU and the device, both ways: the tensor stays the one it was."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    (parameter * 2).sum().backward()
    parameter.grad = None
    parameter.data = torch.full((3,), 5.0, device="tpu")
    assert parameter.device.type == "tpu"
    (parameter * 2).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [3, 3, 3]
    parameter.grad = None
    parameter.data = parameter.data.cpu()
    assert parameter.device.type == "cpu" and parameter.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = torch.eye(3).to_sparse()
