# SPDX-License-Identifier: Apache-2.0
"""Compiles the models of aot_models.py for a TPU that is absent and prints what the compiler says, beside the same
computations in JAX, as a Markdown table.

usage: python benchmarks/aot_table.py [--topology TPU7x:2x2x1] [--only NAME,NAME] [--jax FILE.json] [--out FILE.md]

FILE.json is what jax_models.py writes; jax_anchor.json is one. Compare only within one version of libtpu. A model that
does not compile has its error in the table, and then the exit status is 1.
"""

import argparse
import json
import math
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aot_models import MODELS

from torch_tpu import aot

COLUMNS = (
    "model",
    "ms",
    "JAX ms",
    "ratio",
    "MFU",
    "temp MB",
    "JAX temp MB",
    "temp ratio",
    "peak MB",
    "compile s",
)

NOTES = """\
- **ms** is the compiler's own estimate for one device, never a measurement: nothing here ran on a TPU. **ratio** is
  ours to JAX's, so below 1 ours is estimated to be faster.
- **MFU** is the share of the published bf16 peak that the estimate comes to.
- **temp MB** is memory beside arguments and results, **peak MB** all that is held at one time; 1 MB is 10^6 bytes.
- **compile s** is the time in the TPU compiler, on this machine.
- A `*_fwd` program gives the output. A `*_fwdbwd` program takes the output's gradient too, and gives the output and all
  gradients. A `*_train` program is a whole step: loss, gradients and optimizer, with the state updated in place.
"""


def ratio(ours, theirs):
    return f"{ours / theirs:.2f}" if theirs and not math.isnan(ours) else "–"


def milliseconds(seconds):
    return "–" if seconds is None or math.isnan(seconds) else f"{seconds * 1e3:.3f}"


def megabytes(count):
    return f"{count / 1e6:,.1f}"


def row(name, report, jax) -> list[str]:
    """The cells of a compiled model; jax is its record there, or empty."""
    seconds, temporary = jax.get("optimal_seconds"), jax.get("temp_bytes")
    return [
        name,
        milliseconds(report.seconds),
        milliseconds(seconds),
        ratio(report.seconds, seconds),
        "–" if report.mfu is None else f"{report.mfu:.1%}",
        megabytes(report.temporary_bytes),
        "–" if temporary is None else megabytes(temporary),
        ratio(report.temporary_bytes, temporary),
        megabytes(report.peak_bytes) + ("" if report.fits else " (does not fit)"),
        f"{report.compile_seconds:.1f}",
    ]


def failed(name, error) -> list[str]:
    message = " ".join(str(error).split()).replace("|", r"\|")
    return [name, f"{type(error).__name__}: {message[:200]}"] + [""] * (len(COLUMNS) - 2)


def line(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def installed(package) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="TPU7x:2x2x1")
    parser.add_argument("--only", help="names, separated by commas", default=",".join(MODELS))
    parser.add_argument("--jax", type=Path, help="JSON of the JAX figures")
    parser.add_argument("--out", type=Path, help="Markdown file to write, such as docs/aot_table.md")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    figures = json.loads(args.jax.read_text()) if args.jax else {"records": []}
    jax = {r["name"]: r for r in figures["records"] if r["topology"] == args.topology}
    libtpu = installed("libtpu")
    if args.jax and figures["libtpu"] != libtpu:
        print(f"{args.jax} is of libtpu {figures['libtpu']}, here is {libtpu}: not comparable", file=sys.stderr)

    about = f"`{args.topology}`, libtpu {libtpu}, torch {installed('torch')}"
    about += f"; JAX {figures['jax']} with libtpu {figures['libtpu']}" if args.jax else ""
    lines = ["# Programs compiled ahead of time, and JAX's", "", about + ".", ""]
    lines += [line(COLUMNS), "|---|" + "---:|" * (len(COLUMNS) - 1)]
    print("\n".join(lines), flush=True)
    errors = 0
    for name in names:
        case = MODELS[name]
        try:
            module, inputs = case.build("meta")
            report = aot.compile(
                module, inputs, topology=args.topology, backward=case.backward, optimizer=case.optimizer
            )
            cells = row(name, report, jax.get(name, {}))
        except (RuntimeError, NotImplementedError) as error:
            errors += 1
            cells = failed(name, error)
        lines.append(line(cells))
        print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join([*lines, "", NOTES]))
    sys.exit(errors > 0)


if __name__ == "__main__":
    main()
