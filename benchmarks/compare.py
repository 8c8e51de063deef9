# SPDX-License-Identifier: Apache-2.0
"""Times workloads on the tpu device and on torch's CPU, side by side in one run; prints ratios.

usage: python benchmarks/compare.py [WORKLOAD ...] [--rounds N] [--compiled] [--only NAME ...]
Each round times the CPU and the tpu device, eager and fused (DEFER_AND_FUSE), in turn, in a process of its own each;
a figure is the best step as a multiple of the CPU's best. With --compiled, torch.compile's steps stand beside: ours,
and inductor's on the CPU.
`cold` and `warm` are the seconds of the first step of a first and of a second process (empty and filled caches of
compiled programs and of PyTorch's graphs).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = Path(__file__).with_name("workloads.py")
WORKLOADS = [
    "tiny_ops",
    "elementwise",
    "matmul",
    "mlp_train",
    "gpt_train",
    "conv_train",
    "gpt_decode",
    "smollm",
    "minilm",
]
# name -> device, DEFER_AND_FUSE, flags of the worker
VARIANTS = {"cpu": ("cpu", "0"), "eager": ("tpu", "0"), "fused": ("tpu", "1")}
COMPILED = {"compiled": ("tpu", "0", "compiled"), "inductor": ("cpu", "0", "compiled")}
NOT_COMPILED = {"tiny_ops"}  # 2000 operators in a row: inductor takes minutes
SAME = {"smollm"}  # tokens: the same everywhere


def run(workload: str, cache: str, device: str, fused: str, *flags: str) -> dict:
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torch"}
    env["TORCH_TPU_DEFER_AND_FUSE"] = fused
    out = subprocess.run(
        [sys.executable, str(WORKER), device, workload, *flags], env=env, capture_output=True, text=True
    )
    if out.returncode != 0:
        sys.exit(out.stderr)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--only", nargs="*", help="these of the variants, beside the cpu")
    args = parser.parse_args()
    for workload in args.workloads:
        variants = dict(VARIANTS)
        if args.compiled and workload not in NOT_COMPILED:
            variants.update(COMPILED)
        if args.only:
            variants = {name: how for name, how in variants.items() if name in ("cpu", *args.only)}
        with tempfile.TemporaryDirectory() as folder:
            runs = {name: [] for name in variants}
            for _ in range(args.rounds):
                for name, how in variants.items():
                    runs[name].append(run(workload, f"{folder}/{name}", *how))
        values = {r["value"] for all_runs in runs.values() for r in all_runs}
        if workload in SAME and len(values) > 1:
            sys.exit(f"{workload}: the results differ: {values}")
        best = {name: min(r["best"] for r in all_runs) for name, all_runs in runs.items()}
        line = f"{workload:<12} cpu {best['cpu'] * 1e3:9.3f} ms"
        for name in list(variants)[1:]:
            line += f"  {name} {best[name] / best['cpu']:5.2f}x"
            if workload == "tiny_ops":
                line += f" ({best[name] / 2000 * 1e6:.2f} us an operator)"
        for name in list(variants)[1:]:
            cold, warm = runs[name][0]["first"], min([r["first"] for r in runs[name][1:]] or [float("nan")])
            line += f"  {name} cold {cold:.2f} s, warm {warm:.2f} s"
        print(line, flush=True)


if __name__ == "__main__":
    main()
