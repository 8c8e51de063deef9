# SPDX-License-Identifier: Apache-2.0
from torch_tpu.tpu.streams import Event as TpuEvent

__all__ = ["TpuEvent"]
