# SPDX-License-Identifier: Apache-2.0
"""Programs for TPUs that are not there: traced from ordinary PyTorch code, compiled by libtpu, and
described by what the compiler says of them. Nothing is run and no TPU is needed."""

from torch_tpu.aot._client import CompileError, CompilerBusy, OutOfDeviceMemory
from torch_tpu.aot._compile import compile
from torch_tpu.aot._report import Report
from torch_tpu.aot.chips import CHIPS, Chip, valid_topologies

__all__ = [
    "CHIPS",
    "Chip",
    "CompileError",
    "CompilerBusy",
    "OutOfDeviceMemory",
    "Report",
    "compile",
    "valid_topologies",
]
