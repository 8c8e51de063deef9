# SPDX-License-Identifier: Apache-2.0
"""TPU generations by the compiler's names, with the published peaks of their chips."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One TPU generation. Peaks are of a whole chip; a device may be one of its cores."""

    name: str  # as the compiler spells it
    dimensions: int  # of a topology
    devices: int  # on a chip
    flops: float  # bfloat16 products, each second
    bandwidth: float  # bytes of high-bandwidth memory, each second
    source: str
    examples: tuple[str, ...]

    @property
    def device_flops(self) -> float:
        return self.flops / self.devices

    @property
    def device_bandwidth(self) -> float:
        return self.bandwidth / self.devices


_SOURCE = "Google Cloud documentation, page 'TPU {}': peak bf16 compute and HBM bandwidth of a chip"
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "16x16x16")

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", 2, 1, 197e12, 819e9, _SOURCE.format("v5e"), _FLAT),
        Chip("v5p", 3, 1, 459e12, 2765e9, _SOURCE.format("v5p"), _CUBES),
        Chip("v6e", 2, 1, 918e12, 1638e9, _SOURCE.format("v6e"), _FLAT),
        Chip("TPU7x", 3, 2, 2307e12, 7380e9, _SOURCE.format("TPU7x (Ironwood)"), _CUBES),
    )
}
# The compiler accepts any case; people write what they see elsewhere.
_OTHER_NAMES = {"v7x": "TPU7x", "ironwood": "TPU7x", "v5litepod": "v5e", "v5lite": "v5e", "trillium": "v6e"}


def valid_topologies() -> str:
    """The valid names, for messages."""
    return "; ".join(
        f"{chip.name}: {', '.join(f'{chip.name}:{e}' for e in chip.examples[:4])}, …, {chip.name}:{chip.examples[-1]}"
        for chip in CHIPS.values()
    )


def parse_topology(name: str) -> tuple[Chip, str]:
    """The chip of a topology such as "v6e:2x2", and the name in the compiler's spelling.

    Raises ValueError that lists the valid names. Whether a slice of that form exists, the compiler says.
    """
    match = re.fullmatch(r"\s*([A-Za-z0-9]+)\s*:\s*(\d+(?:x\d+)*)\s*", name) if isinstance(name, str) else None
    chip = None
    if match:
        generation = match[1].lower()
        generation = _OTHER_NAMES.get(generation, generation)
        chip = next((c for c in CHIPS.values() if c.name.lower() == generation.lower()), None)
    if chip is None:
        raise ValueError(f"there is no TPU topology {name!r}; valid are {valid_topologies()}")
    if match[2].count("x") != chip.dimensions - 1 or "0" in match[2].split("x"):
        raise ValueError(
            f"there is no TPU topology {name!r}: {chip.name} has {chip.dimensions} dimensions; "
            f"valid are {valid_topologies()}"
        )
    return chip, f"{chip.name}:{match[2]}"
