# SPDX-License-Identifier: Apache-2.0
"""What operators give on fake tensors, where PyTorch's own rule for tracing refuses what the device computes."""

import torch
from torch._subclasses.fake_impls import register_op_impl

aten = torch.ops.aten


@register_op_impl(aten._grouped_mm.default)
def _grouped_mm(mode, func, a, b, offs=None, bias=None, out_dtype=None):
    # PyTorch's rule takes bfloat16 alone; the device, as CPU PyTorch, float32 and float16 too. What else is wrong with
    # the call is found when the program is made.
    if a.device.type != "tpu" or a.dtype != b.dtype or a.dtype not in (torch.float32, torch.float16):
        return NotImplemented
    if not (a.dim() in (2, 3) and b.dim() in (2, 3) and a.shape[-1] == b.shape[-2]):
        return NotImplemented
    if a.dim() == b.dim():
        sizes = (offs.shape[0] if a.dim() == 2 else a.shape[0], a.shape[-2], b.shape[-1])
    else:
        sizes = (a.shape[-2], b.shape[-1])
    return a.new_empty(sizes, dtype=out_dtype or a.dtype)
