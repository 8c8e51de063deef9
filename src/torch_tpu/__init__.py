# SPDX-License-Identifier: Apache-2.0
"""PyTorch's `tpu` device. Importing torch loads it; importing this package does so by hand."""

from typing import Any

from torch_tpu._loader import load

load()


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up on demand: reading metadata costs milliseconds
        from importlib.metadata import version

        return version("torch_tpu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
