# SPDX-License-Identifier: Apache-2.0
"""PyTorch's whole grid: every op_db entry in every dtype the CPU supports, forward and gradient, on tpu.

usage: python tools/grid.py [REGEX] [--dtype float32 ...] [--jobs 2] [--samples 2] [--results FILE] [--table FILE]
       python tools/grid.py --table FILE --results FILE --only-table

A worker process takes one entry at a time. One that dies or overruns the time limit counts as a crash or a hang
of the case it was at, and another takes over. Results are JSON lines, a case each; one already in the file is not run
again.
"""

import argparse
import collections
import json
import os
import queue
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DTYPES = [
    "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool", "uint8", "int8", "int16", "int32",
    "int64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
SECONDS = 180  # for one case
PER_WORKER = 40  # entries, after which a fresh process bounds the memory
MEMORY_MB = 6000

# ---- The worker: reads entries' names, writes a line for each case ------------------------------------------------


def worker(dtypes: list[str], samples: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT / "tests"))
    import conformance
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._python_dispatch import TorchDispatchMode

    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is no reply
    by_name = {conformance.full_name(op): op for op in op_db}
    captured = r"^PrivateUse1: registered at \S*captured\.cc"  # where decompositions are registered

    class Seen(TorchDispatchMode):
        """The operators that reach the device."""

        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "tpu" in {t.device.type for t in conformance.tensors((args, kwargs or {}))}:
                self.names.add(func.name())
            return func(*args, **(kwargs or {}))

    def way(op: Any) -> str:
        """How the entry is served, by the operators of one sample."""
        before = dict(torch.tpu.fallback_stats())
        with Seen() as seen:
            for s, m in conformance.samples(op, min(op.supported_dtypes("cpu"), key=str_rank), 2):
                try:
                    conformance.call(op, s)
                except Exception:
                    continue
                conformance.call(op, m)
        if dict(torch.tpu.fallback_stats()) != before:
            return "CPU fallback"
        if any(re.search(captured, torch._C._dispatch_dump(n), re.MULTILINE) for n in seen.names):
            return "decomposition"
        names = {n.split("::")[1].split(".")[0] for n in seen.names}
        own = {op.name, op.aten_name, *(a.name for a in op.aliases)} if hasattr(op, "aten_name") else {op.name}
        own = {re.sub(r"^(special|linalg|fft|nn\.functional)\.", "", n or "") for n in own} | {
            (n or "").replace(".", "_") for n in own
        }
        return "native" if names & own or len(names) == 1 else "composite"

    def str_rank(dtype: Any) -> int:
        name = str(dtype)[6:]
        return DTYPES.index(name) if name in DTYPES else 99

    def case(op: Any, dtype: Any, what: str) -> tuple[str, str]:
        check = conformance.check_forward if what == "forward" else conformance.check_gradient
        try:
            return ("pass", "") if check(op, dtype, samples if what == "forward" else 1) else ("none", "")
        except Exception as error:
            text = " / ".join(line.strip() for line in str(error).splitlines() if line.strip())
            return "fail", f"{type(error).__name__}: {text[:400]}"

    def say(**line: Any) -> None:
        reply.write(json.dumps(line) + "\n")
        reply.flush()

    for line in sys.stdin:
        job = json.loads(line)
        op = by_name[job["op"]]
        for name in dtypes:
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for what in ("forward", "gradient"):
                if what == "gradient" and not conformance.differentiable(op, dtype):
                    continue
                if [name, what] in job["done"]:
                    continue
                say(op=job["op"], dtype=name, what=what, result="started")
                before, start = dict(torch.tpu.fallback_stats()), time.monotonic()
                result, why = case(op, dtype, what)
                after = torch.tpu.fallback_stats()
                fell = sorted(k for k, v in after.items() if v != before.get(k, 0))
                seconds = round(time.monotonic() - start, 2)
                say(op=job["op"], dtype=name, what=what, result=result, why=why, cpu=fell, seconds=seconds)
        if ["", "way"] not in job["done"] and op.supported_dtypes("cpu"):
            say(op=job["op"], dtype="", what="way", result="started")
            try:
                served = way(op)
            except Exception:  # the cases above say why
                served = "not at all"
            say(op=job["op"], dtype="", what="way", result=served)
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY_MB * 1024
        say(idle=True, full=full)


# ---- The coordinator ---------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, args: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--worker", "--samples", str(args.samples), "--dtype", *args.dtype]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.entries = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def entry(worker: Worker | None, name: str, done: list[list[str]], args: argparse.Namespace, record: Any) -> Any:
    """Runs the cases of one entry, in as many processes as it takes. Returns a worker to go on with, or None."""
    while True:
        worker = worker or Worker(args)
        worker.process.stdin.write(json.dumps({"op": name, "done": done}) + "\n")
        worker.process.stdin.flush()
        at = None
        while True:
            try:
                text = worker.lines.get(timeout=SECONDS)
                line = json.loads(text) if text else None
            except queue.Empty:
                line = {"hang": True}
            if line and "idle" in line:
                worker.entries += 1
                if line["full"] or worker.entries >= PER_WORKER:
                    worker.stop()
                    return None
                return worker
            if line is None or "hang" in line:
                worker.stop()
                code = worker.process.returncode
                worker = None
                if at is None:
                    print(f"{name}: the worker did not start: {code}", file=sys.stderr)
                    return None
                result = "hang" if line else "crash"
                record({**at, "result": result, "why": f"exit {code}", "cpu": [], "seconds": 0})
                done = [*done, [at["dtype"], at["what"]]]
                break
            at = line
            if line["result"] != "started":
                record(line)
                done = [*done, [line["dtype"], line["what"]]]


def run(args: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    names = [f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name for op in op_db]
    done = collections.defaultdict(list)
    for line in lines:
        done[line["op"]].append([line["dtype"], line["what"]])
    todo: queue.Queue[str] = queue.Queue()
    for name in names:
        if re.search(args.regex, name):
            todo.put(name)
    lock = threading.Lock()
    with open(args.results, "a") as file:

        def record(line: dict[str, Any]) -> None:
            with lock:
                lines.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
                if line["result"] in ("fail", "crash", "hang"):
                    head = (line["op"], line["dtype"], line["what"], line["result"])
                    print(*head, line["why"][:200], flush=True)

        def serve() -> None:
            worker = None
            while True:
                try:
                    name = todo.get_nowait()
                except queue.Empty:
                    break
                worker = entry(worker, name, done[name], args, record)
            if worker:
                worker.stop()

        threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# ---- The table ---------------------------------------------------------------------------------------------------

SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128",
    "bool": "b", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float8_e4m3fn": "f8e4", "float8_e5m2": "f8e5", "float8_e4m3fnuz": "f8e4z",
    "float8_e5m2fnuz": "f8e5z",
}  # fmt: skip

HEAD = """# Operators

Generated by `make grid`: PyTorch's own samples of each `op_db` entry on `tpu`, judged against the CPU with PyTorch's
tolerances, in each dtype the CPU supports but `complex32`. `*` after a dtype: its gradient passes as well.

- native: the operator has a lowering of its own. composite: PyTorch writes it in terms of others, which have.
- decomposition: PyTorch's Python decomposition, captured into one program. CPU fallback: some step runs on the CPU.
"""


def count(lines: list[dict[str, Any]]) -> tuple[int, int]:
    results = [line["result"] for line in lines if line["result"] != "none"]
    return results.count("pass"), len(results)


def percent(lines: list[dict[str, Any]]) -> str:
    good, total = count(lines)
    return f"{good} of {total} ({100 * good / total:.2f} %)" if total else "-"


def totals(lines: list[dict[str, Any]]) -> str:
    cases = [line for line in lines if line["what"] != "way"]
    rows = ["| dtype | forward | gradient |", "|---|---|---|"]
    for dtype in DTYPES:
        mine = [line for line in cases if line["dtype"] == dtype]
        by = {w: percent([line for line in mine if line["what"] == w]) for w in ("forward", "gradient")}
        if mine:
            rows.append(f"| {dtype} | {by['forward']} | {by['gradient']} |")
    by = {w: percent([line for line in cases if line["what"] == w]) for w in ("forward", "gradient")}
    rows.append(f"| all | {by['forward']} | {by['gradient']} |")
    # A pair passes if its forward and its gradient do.
    pairs = collections.defaultdict(list)
    for line in cases:
        pairs[line["op"], line["dtype"]].append(line["result"])
    judged = [set(results) - {"none"} for results in pairs.values()]
    good, total = sum(r == {"pass"} for r in judged), sum(bool(r) for r in judged)
    rows += ["", f"Operator and dtype, forward and gradient together: {good} of {total} ({100 * good / total:.2f} %)."]
    return "\n".join(rows)


def table(lines: list[dict[str, Any]]) -> str:
    ways, cells = {}, collections.defaultdict(dict)
    for line in lines:
        if line["what"] == "way":
            ways[line["op"]] = line["result"]
        else:
            cells[line["op"]][line["dtype"], line["what"]] = line["result"]
    served = collections.Counter(ways.values())
    out = [HEAD, "How the entries are served: " + ", ".join(f"{n} {w}" for w, n in served.most_common()) + ".", ""]
    out += [totals(lines), "", "| operator | served as | passes | fails |", "|---|---|---|---|"]
    for name in sorted(cells):
        passes, fails = [], []
        for dtype in DTYPES:
            forward, gradient = (cells[name].get((dtype, w)) for w in ("forward", "gradient"))
            if forward == "pass":
                passes.append(SHORT[dtype] + ("*" if gradient == "pass" else ""))
            elif forward not in (None, "none"):
                fails.append(SHORT[dtype] + ("" if forward == "fail" else f" ({forward})"))
            if gradient in ("fail", "crash", "hang"):
                fails.append(SHORT[dtype] + " gradient" + ("" if gradient == "fail" else f" ({gradient})"))
        out.append(f"| {name} | {ways.get(name, '?')} | {' '.join(passes)} | {', '.join(fails)} |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regex", nargs="?", default=".")
    parser.add_argument("--dtype", nargs="*", default=DTYPES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--results", default="build/grid.jsonl")
    parser.add_argument("--table")
    parser.add_argument("--only-table", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.dtype, args.samples)
    path = Path(args.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not args.only_table:
        run(args, lines)
    if args.table:
        Path(args.table).write_text(table(lines))
    print(totals(lines))
    return None


if __name__ == "__main__":
    main()
