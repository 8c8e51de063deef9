# SPDX-License-Identifier: Apache-2.0
"""Words for people, shared by the reports."""

from importlib.metadata import PackageNotFoundError, version


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a number of one or more."""
    units = ["B", "KiB", "MiB", "GiB"]
    while abs(count) >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.{2 if units[0] == 'GiB' else 1}f} {units[0]}"


def installed(package: str) -> str:
    """The version of a distribution, or that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
