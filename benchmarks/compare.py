# SPDX-License-Identifier: Apache-2.0
"""Times workloads on the tpu device and on torch's CPU, side by side in one run; prints ratios.

usage: python benchmarks/compare.py [WORKLOAD ...] [--rounds N] [--compiled]
Each round times cpu and tpu in turn, in a process of its own each; the ratio is that of the best steps.
With --compiled, torch.compile's steps stand beside: ours, and inductor's on the CPU, as multiples of the CPU's
eager steps.
`cold` and `warm` are the seconds of the first step of a first and of a second process (empty and
filled cache of compiled programs).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = Path(__file__).with_name("workloads.py")
WORKLOADS = ["tiny_ops", "elementwise", "matmul", "mlp_train", "gpt_train", "conv_train", "gpt_decode"]


def run(device: str, workload: str, cache: str, *flags: str) -> dict:
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": cache}
    out = subprocess.run(
        [sys.executable, str(WORKER), device, workload, *flags], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    print(f"{'workload':<12} {'cpu ms':>10} {'tpu ms':>10} {'ratio':>7} {'cold s':>8} {'warm s':>8} {'warm/cold':>10}")
    for workload in args.workloads:
        with tempfile.TemporaryDirectory() as cache:
            cpu, tpu, ours, inductor = [], [], [], []
            for _ in range(args.rounds):
                cpu.append(run("cpu", workload, cache))
                tpu.append(run("tpu", workload, cache))
                if args.compiled and workload != "tiny_ops":  # 2000 operators in a row: inductor takes minutes
                    ours.append(run("tpu", workload, cache, "compiled"))
                    inductor.append(run("cpu", workload, cache, "compiled"))
        fastest_cpu = min(r["best"] for r in cpu)
        fastest_tpu = min(r["best"] for r in tpu)
        cold, warm = tpu[0]["first"], min(r["first"] for r in tpu[1:]) if len(tpu) > 1 else float("nan")
        per_op = f"  {fastest_tpu / 2000 * 1e6:.2f} us an operator" if workload == "tiny_ops" else ""
        if ours:
            for name, runs in (("compiled", ours), ("inductor", inductor)):
                best, first = min(r["best"] for r in runs), runs[0]["first"]
                per_op += f"  {name} {best / fastest_cpu:.2f}x (first {first:.1f} s)"
        print(
            f"{workload:<12} {fastest_cpu * 1e3:>10.3f} {fastest_tpu * 1e3:>10.3f} {fastest_tpu / fastest_cpu:>6.2f}x"
            f" {cold:>8.2f} {warm:>8.2f} {warm / cold:>9.2f}x{per_op}",
            flush=True,
        )


if __name__ == "__main__":
    main()
