# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own harness (instantiate_device_type_tests) over op_db, module_db and optim_db for device `tpu`: every
entry in every dtype that the CPU supports, in each mode. `make grid` runs these tests in processes of their own and
writes docs/operators.md; with TORCH_TPU_TEST_GRID=1 pytest runs them too. What fails stands in expected_failures.txt.
"""

import conformance
import grid_dtypes
import pytest
import torch
from test_modules import check as check_module
from test_optimizers import CASES, check_optimizer
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase

from torch_tpu import _C

pytestmark = [pytest.mark.grid, pytest.mark.timeout(300, method="thread"), pytest.mark.filterwarnings("ignore")]

Mode = torch.tpu.EagerMode
DTYPES = tuple(getattr(torch, name) for name in grid_dtypes.NAMES)
# Modes after the first: the programs are the same, or made of the same graphs, so one dtype of each kind.
KINDS = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


class TestGrid(TestCase):
    def ran(self, count: int) -> None:
        if not count:
            self.skipTest("no sample that the CPU runs")

    @ops(op_db, allowed_dtypes=DTYPES)
    def test_forward(self, device, dtype, op):
        self.ran(conformance.check_forward(op, dtype, 2))

    @ops(op_db, dtypes=OpDTypes.supported_backward, allowed_dtypes=DTYPES)
    def test_gradient(self, device, dtype, op):
        self.ran(conformance.check_gradient(op, dtype, 1))

    @ops(op_db, allowed_dtypes=(torch.float32, torch.int64))
    def test_debug(self, device, dtype, op):
        with conformance.eager_mode(Mode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
            self.ran(conformance.check_forward(op, dtype, 1))

    @ops(op_db, allowed_dtypes=KINDS)
    def test_fused(self, device, dtype, op):
        with conformance.eager_mode(Mode.DEFER_AND_FUSE):
            self.ran(conformance.check_forward(op, dtype, 1))

    @ops(op_db, dtypes=OpDTypes.supported_backward, allowed_dtypes=(torch.float32, torch.complex64))
    def test_fused_gradient(self, device, dtype, op):
        with conformance.eager_mode(Mode.DEFER_AND_FUSE):
            self.ran(conformance.check_gradient(op, dtype, 1))

    @ops(op_db, allowed_dtypes=KINDS)
    def test_compiled(self, device, dtype, op):
        self.ran(conformance.check_compiled(op, dtype, 1))

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_autocast(self, device, dtype, op):
        if conformance.full_name(op) in conformance.AUTOCAST:
            self.skipTest("autocast's lists are CUDA's")
        self.ran(conformance.check_autocast(op, torch.bfloat16, 1))

    @ops(op_db, allowed_dtypes=(torch.float32, torch.int64))
    def test_tpu_forms(self, device, dtype, op):
        with _C.Target("TPU"):
            self.ran(conformance.check_forward(op, dtype, 1))

    @modules(module_db, allowed_dtypes=(torch.float32, torch.float64))
    def test_module(self, device, dtype, module_info, training):
        self.ran(check_module(module_info, training, dtype))

    @optims(optim_db, dtypes=[torch.float32])
    def test_optimizer(self, device, dtype, optim_info):
        for case in CASES:
            info, implementation = case.values
            if info is optim_info:
                check_optimizer(info, implementation)


instantiate_device_type_tests(TestGrid, globals(), only_for="privateuse1")
