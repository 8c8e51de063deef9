# SPDX-License-Identifier: Apache-2.0
from typing import Any

import torch

from torch_tpu.compile import backend


class TpuBackend:
    """The backend of torch.compile as an object: called with an FX graph and its inputs, gives a function."""

    def __init__(self, **options: Any):
        self.options = options

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Any:
        return backend.tpu(gm, example_inputs, **{**self.options, **options})
