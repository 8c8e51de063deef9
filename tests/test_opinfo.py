# SPDX-License-Identifier: Apache-2.0
"""Every entry of PyTorch's op_db on tpu against the CPU (conformance.py). What fails stands in expected_failures.txt.

TORCH_TPU_TEST_GRID=1 runs all entries compiled, under autocast and fused with their gradient instead of a quarter, and
the tests of test_device_type.py, which are of all dtypes.
tools/opcheck.py runs more samples of what one names.
"""

from collections.abc import Iterable, Iterator

import conformance
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from torch_tpu import _C

MODES = {"eager": "DEFER_NEVER", "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING", "fused": "DEFER_AND_FUSE"}

# thread: a hang inside XLA ends the worker, which pytest-xdist replaces; a signal would wait for it.
pytestmark = [
    pytest.mark.timeout(60, method="thread"),
    pytest.mark.filterwarnings("ignore"),
]


def each(ops: Iterable[OpInfo], every: int = 1) -> pytest.MarkDecorator:
    """One worker gets all tests of an entry: its programs are compiled once. One in `every` runs without
    TORCH_TPU_TEST_GRID=1."""
    params = []
    for n, op in enumerate(ops):
        marks = [pytest.mark.xdist_group(op.name), *([pytest.mark.grid] if n % every else [])]
        params.append(pytest.param(op, id=conformance.full_name(op), marks=marks))
    return pytest.mark.parametrize("op", params)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with conformance.eager_mode(torch.tpu.EagerMode[MODES[request.param]]):
        yield request.param


def ran(count: int) -> None:
    if not count:
        pytest.skip("no sample that the CPU runs")


@each(conformance.entries(torch.float32))
def test_forward(op: OpInfo, mode: str) -> None:
    ran(conformance.check_forward(op, torch.float32, 2 if mode == "debug" else 6))


@each(op for op in conformance.entries(torch.float32) if conformance.differentiable(op))
def test_gradient(op: OpInfo) -> None:
    ran(conformance.check_gradient(op, torch.float32, 2))


# Forward and backward as one program.
@each((op for op in conformance.entries(torch.float32) if conformance.differentiable(op)), every=4)
def test_gradient_fused(op: OpInfo) -> None:
    with conformance.eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        ran(conformance.check_gradient(op, torch.float32, 1))


@each(op for op in conformance.entries(torch.float32) if op.get_inplace())
def test_inplace(op: OpInfo) -> None:
    ran(conformance.check_inplace(op, torch.float32, 1))


@each(op for op in conformance.entries(torch.float32) if op.supports_out)
def test_out(op: OpInfo) -> None:
    ran(conformance.check_out(op, torch.float32, 1))


@each(op for op in op_db if op.error_inputs_func)
def test_errors(op: OpInfo) -> None:
    ran(conformance.check_errors(op))


# A sample in a graph of torch.compile; an entry takes about a third of a second.
@each(conformance.entries(torch.float32), every=4)
def test_compiled(op: OpInfo) -> None:
    ran(conformance.check_compiled(op, torch.float32, 1))


@each(
    (op for op in conformance.entries(torch.float32) if conformance.full_name(op) not in conformance.AUTOCAST), every=4
)
def test_autocast(op: OpInfo) -> None:
    ran(conformance.check_autocast(op, torch.bfloat16, 1))


# The forms that a TPU gets where they differ (csrc/lowering/target.h), run on virtual devices.
@each(conformance.entries(torch.float32))
def test_tpu_forms(op: OpInfo) -> None:
    with _C.Target("TPU"):
        ran(conformance.check_forward(op, torch.float32, 2))
        if torch.int64 in op.supported_dtypes("cpu"):
            conformance.check_forward(op, torch.int64, 1)
        if conformance.differentiable(op):
            conformance.check_gradient(op, torch.float32, 1)
