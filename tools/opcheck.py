# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's OpInfo samples on tpu against the CPU, judged as in tests/test_opinfo.py.

usage: python tools/opcheck.py [REGEX] [--dtype float32 ...] [--grad] [--out] [--inplace] [--errors] [--samples N] [-v]
Prints a line for each operator and dtype that fails or falls back to the CPU, and a total.
"""

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import conformance  # noqa: E402
import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo.core import OpInfo  # noqa: E402


def checks(op: OpInfo, dtype: torch.dtype, args: argparse.Namespace) -> list[Callable[[], int]]:
    chosen = [lambda: conformance.check_forward(op, dtype, args.samples)]
    if args.grad and conformance.differentiable(op, dtype):
        chosen.append(lambda: conformance.check_gradient(op, dtype, args.samples))
    if args.out and op.supports_out:
        chosen.append(lambda: conformance.check_out(op, dtype, args.samples))
    if args.inplace and op.get_inplace():
        chosen.append(lambda: conformance.check_inplace(op, dtype, args.samples))
    if args.errors and op.error_inputs_func:
        chosen.append(lambda: conformance.check_errors(op))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regex", nargs="?", default=".")
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    for name in ("grad", "out", "inplace", "errors"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("-v", action="store_true", help="tracebacks")
    args = parser.parse_args()
    good = bad = 0
    for op in op_db:
        full = conformance.full_name(op)
        if not re.search(args.regex, full):
            continue
        for name in args.dtype:
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes("cpu"):
                continue
            before = dict(torch.tpu.fallback_stats())
            verdict = "ok"
            for check in checks(op, dtype, args):
                try:
                    check()
                except Exception as e:
                    lines = str(e).strip().splitlines()
                    verdict = f"FAIL {type(e).__name__}: {' / '.join(line for line in lines if line)[:400]}"
                    if args.v:
                        traceback.print_exc()
            good += verdict == "ok"
            bad += verdict != "ok"
            fell = sorted(k for k, v in torch.tpu.fallback_stats().items() if v != before.get(k, 0))
            if verdict != "ok" or fell:
                print(f"{full} {name}: {verdict}" + (f"  [cpu: {', '.join(fell)}]" if fell else ""), flush=True)
    print(f"{good} pass, {bad} fail")


if __name__ == "__main__":
    main()
