# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.compiler`: XLA's options for functions that torch.compile compiles."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["custom_compiler_options"]


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Context manager or decorator: functions that are first called inside are compiled with these XLA options,
    such as {"xla_cpu_enable_fast_math": True}, as with torch.compile's `options=`, which win. Not for eager calls."""
    from torch_tpu.compile import backend

    token = backend.compiler_options.set({**backend.compiler_options.get(), **options})
    try:
        yield
    finally:
        backend.compiler_options.reset(token)
