# SPDX-License-Identifier: Apache-2.0
"""What the compiler says of a program, corrected where its figures are known to be off."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from torch_tpu._text import size
from torch_tpu.aot.chips import Chip

# By the names of MLIR, as the graph prints them.
_SIZES = {
    **dict.fromkeys(("i1", "i8", "ui8", "i4", "ui4", "i2", "ui2"), 1),
    **dict.fromkeys(("bf16", "f16", "i16", "ui16"), 2),
    **dict.fromkeys(("f32", "i32", "ui32"), 4),
    **dict.fromkeys(("f64", "i64", "ui64", "complex<f32>"), 8),
    "complex<f64>": 16,
}
# The compiler rates products at this share of the published peak (996 of 1153.5 TFLOP/s on TPU7x), so
# that no program is estimated above it.
PRODUCT_CEILING = 0.86
# float32 products at the highest precision are sums of six products of bfloat16 parts.
PASSES_OF_FLOAT32 = 6


def type_bytes(text: str) -> int:
    """Bytes of a type such as "f32[8,128]" without the padding of a TPU's tiles."""
    match = re.fullmatch(r"([\w<>]+)\[([\d,]*)\]", text)
    if match is None:
        return 0
    width = 1 if match[1].startswith("f8") else _SIZES.get(match[1], 1)
    return width * math.prod(int(n) for n in match[2].split(",") if n)


@dataclass
class Report:
    """A compiled program of one device. Sizes in bytes, times in seconds.

    `seconds` is the compiler's own estimate and never a measurement; `corrections` says what was done to
    it. `mfu`, the share of the chip's peak that the program's matrix products would reach in that time,
    is None where a loop that runs as long as its values say makes the estimate a lower bound. Recomputed
    products count as work.
    """

    name: str
    topology: str
    chip: Chip
    fits: bool
    memory_limit: int  # of one device
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int  # of the outputs, in the memory of arguments
    temporary_bytes: int
    code_bytes: int
    peak_bytes: int
    flops: float  # the compiler's count, all arithmetic
    product_flops: float  # ours: matrix products and convolutions
    bytes_accessed: float
    seconds: float
    raw_seconds: float  # the compiler's figure as it stands
    roofline_seconds: float  # no program can be faster: its products at the peak, its arguments and results read once
    mfu: float | None
    corrections: list[str]
    compile_seconds: float
    inputs: list[tuple[str, str]]
    outputs: list[str]
    donated: int  # inputs that are updated in place
    choices: list[tuple[str, str, str]]  # what depends on the target: what, the form taken, why
    over_bytes: int = 0  # what is missing where it doesn't fit
    error: str = ""  # the compiler's text where it doesn't fit
    largest: list[tuple[str, int]] = field(default_factory=list)  # what takes the most memory
    optimized_hlo: str = field(default="", repr=False)
    serialized: bytes = field(default=b"", repr=False)
    stablehlo: str = field(default="", repr=False)

    def __str__(self) -> str:
        lines = [f"{self.name} on one device of {self.topology}"]
        chip = self.chip
        if self.fits:
            lines += [
                f"  memory      peak {size(self.peak_bytes)} of {size(self.memory_limit)}: arguments "
                f"{size(self.argument_bytes)}, results {size(self.output_bytes)} ({size(self.aliased_bytes)} of it "
                f"in place), temporaries {size(self.temporary_bytes)}, code {size(self.code_bytes)}",
                f"  estimate    {self.seconds * 1e3:.3f} ms, the compiler's own, not measured"
                + (f"; {100 * self.mfu:.1f}% of the peak" if self.mfu is not None else ""),
                f"  work        {self.product_flops:.4g} flops in products, {self.bytes_accessed:.4g} bytes accessed; "
                f"not below {self.roofline_seconds * 1e3:.3f} ms",
                f"  peak        {chip.device_flops / 1e12:.0f} TFLOP/s (bf16) and "
                f"{chip.device_bandwidth / 1e9:.0f} GB/s a device, {chip.devices} to a chip ({chip.source})",
                f"  compiled in {self.compile_seconds:.1f} s",
            ]
            lines += [f"  corrected   {text}" for text in self.corrections]
        else:
            lines.append(
                f"  does not fit: {size(self.over_bytes)} more than the {size(self.memory_limit)} of a device"
                if self.over_bytes
                else f"  does not fit the {size(self.memory_limit)} of a device"
            )
        if self.largest:
            lines.append(
                "  largest     " + "\n              ".join(f"{size(n)}  {what}" for what, n in self.largest[:8])
            )
        lines += [f"  choice      {what}: {form}" for what, form, _ in self.choices]
        return "\n".join(lines)


@dataclass
class LoopTime:
    """What the passes of loops after the first add to an estimate."""

    seconds: float = 0.0
    counted: int = 0  # loops
    unknown: int = 0  # loops whose passes are not known before they run, or whose body has no estimate


def known_seconds(raw: float, least: float = 0.0) -> float:
    """The compiler's figure without its operations of unknown cost, which count as -1 s each. No program takes
    less than `least` seconds."""
    return raw + max(0, math.ceil(-raw), math.ceil(least - raw) if least > 1 else 0)


def estimate(
    raw: float, flops: float, wide_flops: float, loops: LoopTime, bytes_touched: float, chip: Chip
) -> tuple[float, float, list[str]]:
    """Corrected seconds, the roofline, and what was corrected.

    The traps: each operation of unknown cost (the compiler's own ConcatBitcast is one) counts as -1 s; the
    body of a loop counts once; float32 products cost as much as bfloat16 ones.
    """
    corrections = []
    roofline = max(flops / chip.device_flops, bytes_touched / chip.device_bandwidth)
    seconds = known_seconds(raw, max(roofline - loops.seconds, 0.0))
    if seconds != raw:
        corrections.append(
            f"{round(seconds - raw)} operations of unknown cost, -1 s each in the raw figure, were taken out"
        )
    if loops.counted:
        seconds += loops.seconds
        corrections.append(
            f"{loops.seconds * 1e3:.3f} ms added: the bodies of {loops.counted} loops count once in the raw figure"
        )
    if wide_flops:
        extra = (PASSES_OF_FLOAT32 - 1) * wide_flops / (chip.device_flops * PRODUCT_CEILING)
        seconds += extra
        corrections.append(
            f"{extra * 1e3:.3f} ms added: {wide_flops:.3g} flops in float32 at the highest precision take "
            f"{PASSES_OF_FLOAT32} passes and are rated as one; torch.set_float32_matmul_precision('high') or bfloat16 "
            "is faster"
        )
    if loops.unknown:
        corrections.append(f"{loops.unknown} loops that run as long as their values say, counted once: a lower bound")
    return seconds, roofline, corrections


def describe(
    program: Any,
    chip: Chip,
    topology: str,
    reply: dict[str, Any] | None,
    error: str = "",
    loops: LoopTime | None = None,
) -> Report:
    """The report of a traced program and the compiler's reply, or its refusal for want of memory."""
    arguments = sum(type_bytes(t) for _, t in program.inputs)
    outputs = sum(type_bytes(t) for t in program.outputs)
    base: dict[str, Any] = {
        "name": program.name,
        "topology": topology,
        "chip": chip,
        "product_flops": program.product_flops,
        "inputs": program.inputs,
        "outputs": program.outputs,
        "donated": program.donated,
        "choices": program.choices,
        "stablehlo": program.text,
    }
    if reply is None:
        needed, limit = _sizes_of(error)
        return Report(
            **base,
            fits=False,
            memory_limit=limit,
            argument_bytes=arguments,
            output_bytes=outputs,
            aliased_bytes=0,
            temporary_bytes=0,
            code_bytes=0,
            peak_bytes=max(needed, arguments),
            flops=0,
            bytes_accessed=0,
            seconds=math.nan,
            raw_seconds=math.nan,
            roofline_seconds=math.nan,
            mfu=None,
            corrections=[],
            compile_seconds=0,
            over_bytes=max(needed - limit, 0),
            error=error,
            largest=_largest_values(program),
        )
    memory, cost = reply["memory"], reply["cost"]
    raw = cost.get("optimal_seconds", math.nan)
    seconds, roofline, corrections = estimate(
        raw, program.product_flops, program.wide_flops, loops := loops or LoopTime(), arguments + outputs, chip
    )
    limit = int(reply["attributes"].get("device_memory_bytes_limit", 0))
    return Report(
        **base,
        fits=not limit or memory["peak"] <= limit,
        memory_limit=limit,
        argument_bytes=memory["arguments"],
        output_bytes=memory["outputs"],
        aliased_bytes=memory["aliased"],
        temporary_bytes=memory["temporaries"],
        code_bytes=memory["code"],
        peak_bytes=memory["peak"],
        flops=cost.get("flops", 0.0),
        bytes_accessed=cost.get("bytes accessed", 0.0),
        seconds=seconds,
        raw_seconds=raw,
        roofline_seconds=roofline,
        mfu=None if loops.unknown else program.product_flops / seconds / chip.device_flops,
        corrections=corrections,
        compile_seconds=reply["compile_seconds"],
        largest=_largest_inputs(program)[:8],
        optimized_hlo=reply.get("hlo", ""),
        serialized=reply.get("serialized", b""),
    )


def _largest_inputs(program: Any) -> list[tuple[str, int]]:
    sizes = [(f"argument {name}: {kind}", type_bytes(kind)) for name, kind in program.inputs]
    return sorted(sizes, key=lambda row: -row[1])


def _largest_values(program: Any) -> list[tuple[str, int]]:
    """Arguments and values on the way, largest first, with the operator and line that they come from."""
    rows = dict(_largest_inputs(program))
    pattern = re.compile(r'-> tensor<((?:\d+x)*)([a-z][\w<>]*)> loc\("([^"]*)"\)$', re.MULTILINE)
    for dims, dtype, origin in pattern.findall(program.text):
        kind = f"{dtype}[{dims.rstrip('x').replace('x', ',')}]"
        rows.setdefault(f"value {kind} of {origin}", type_bytes(kind))
    return sorted(rows.items(), key=lambda row: -row[1])[:12]


def _sizes_of(error: str) -> tuple[int, int]:
    """Needed and available bytes from the compiler's text, 0 where it says none."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    for pattern in (
        r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
        r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
        r"\(([\d.]+)([KMGT]?)B?\) exceeds[^(]*\(([\d.]+)([KMGT]?)B?\)",
    ):
        if match := re.search(pattern, error):
            return int(float(match[1]) * units[match[2]]), int(float(match[3]) * units[match[4]])
    return 0, 0
