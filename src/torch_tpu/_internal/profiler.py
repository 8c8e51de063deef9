# SPDX-License-Identifier: Apache-2.0
from torch_tpu.tpu.profiler import TpuProfilerConfig

__all__ = ["TpuProfilerConfig"]
