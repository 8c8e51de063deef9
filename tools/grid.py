# SPDX-License-Identifier: Apache-2.0
"""PyTorch's whole grid on tpu: the tests that its harness makes of tests/test_device_type.py, each entry in a process.

usage: python tools/grid.py [REGEX] [--jobs 2] [--results FILE] [--table FILE]
       python tools/grid.py --table FILE --results FILE --only-table

A worker process takes the tests of one entry at a time. One that dies or overruns the time limit counts as a crash or a
hang of the test it was at, and another takes over. Results are JSON lines, a test each; one already in the file is not
run again. The exit status is 1 if a test fails that is not in tests/expected_failures.txt, or a listed one passes.
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
sys.path.insert(0, str(ROOT / "tests"))
from grid_dtypes import NAMES as DTYPES  # noqa: E402

OF_OPERATORS = ("forward", "gradient", "debug", "fused", "fused_gradient", "compiled", "autocast", "tpu_forms")
WHATS = (*OF_OPERATORS, "module", "optimizer")
NAME = re.compile(rf"test_({'|'.join(sorted(WHATS, key=len, reverse=True))})_(.+)_tpu_({'|'.join(DTYPES)})")
SECONDS = 180  # for one test
PER_WORKER = 40  # entries, after which a fresh process bounds the memory
MEMORY_MB = 6000

# ---- The worker: reads names of tests, writes a line for each ------------------------------------------------------


def worker() -> None:
    import unittest
    import warnings

    warnings.simplefilter("ignore")
    import conformance
    import program_counts
    import test_device_type
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._python_dispatch import TorchDispatchMode

    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is no reply
    by_name = {conformance.full_name(op): op for op in op_db}
    captured = r"^PrivateUse1: registered at \S*captured\.cc"  # where decompositions are registered
    tests = test_device_type.TestGridPRIVATEUSE1
    tests.setUpClass()

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

    def run_test(name: str) -> tuple[str, str]:
        found = unittest.TestResult()
        tests(name).run(found)
        if found.skipped:
            return "none", ""
        if not (found.errors or found.failures):
            return "pass", ""
        lines = [line.strip() for line in (found.errors + found.failures)[0][1].splitlines() if line.strip()]
        last = next((n for n in reversed(range(len(lines))) if re.match(r"[\w.]*(Error|Exception)\b", lines[n])), -1)
        return "fail", " / ".join(lines[last:])[:400]

    def say(**line: Any) -> None:
        reply.write(json.dumps(line) + "\n")
        reply.flush()

    for line in sys.stdin:
        job = json.loads(line)
        for name in job["tests"]:
            say(entry=job["entry"], test=name, result="started")
            before, start = dict(torch.tpu.fallback_stats()), time.monotonic()
            if name == "way":
                try:
                    result, why = way(by_name[job["entry"]]), ""
                except Exception:  # the tests say why
                    result, why = "not at all", ""
            else:
                result, why = run_test(name)
            after = torch.tpu.fallback_stats()
            fell = sorted(k for k, v in after.items() if v != before.get(k, 0))
            seconds = round(time.monotonic() - start, 2)
            say(entry=job["entry"], test=name, result=result, why=why, cpu=fell, seconds=seconds)
            program_counts.bound()
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY_MB * 1024
        say(idle=True, full=full)


# ---- The coordinator ---------------------------------------------------------------------------------------------


class Worker:
    def __init__(self) -> None:
        command = [sys.executable, __file__, "--worker"]
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


def run_entry(worker: Worker | None, name: str, tests: list[str], record: Any) -> Worker | None:
    """Runs the tests of one entry, in as many processes as it takes. Returns a worker to go on with, or None."""
    left = list(tests)
    while True:
        worker = worker or Worker()
        worker.process.stdin.write(json.dumps({"entry": name, "tests": left}) + "\n")
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
                record({**at, "result": "hang" if line else "crash", "why": f"exit {code}", "cpu": [], "seconds": 0})
                left.remove(at["test"])
                break
            at = line
            if line["result"] != "started":
                record(line)
                left.remove(line["test"])


def entries() -> dict[str, list[str]]:
    """The tests of each entry: of operators by PyTorch's name for them, of modules and optimizers by their class."""
    import conformance
    import test_device_type
    from torch.testing._internal.common_methods_invocations import op_db

    names = {op.formatted_name: conformance.full_name(op) for op in op_db}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for test in dir(test_device_type.TestGridPRIVATEUSE1):
        if match := NAME.fullmatch(test):
            what, of, _ = match.groups()
            found.setdefault(names[of] if what in OF_OPERATORS else f"{what} {of}", []).append(test)
    for tests in found.values():
        if any(NAME.fullmatch(test)[1] in OF_OPERATORS for test in tests):
            tests.append("way")
    return found


def run(args: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    done = {(line["entry"], line["test"]) for line in lines}
    todo: queue.Queue[tuple[str, list[str]]] = queue.Queue()
    for name, tests in entries().items():
        left = [test for test in tests if (name, test) not in done]
        if left and re.search(args.regex, name):
            todo.put((name, left))
    lock = threading.Lock()
    with open(args.results, "a") as file:

        def record(line: dict[str, Any]) -> None:
            with lock:
                lines.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
                if line["result"] in ("fail", "crash", "hang"):
                    print(line["entry"], line["test"], line["result"], line["why"][:200], flush=True)

        def serve() -> None:
            worker = None
            while True:
                try:
                    name, tests = todo.get_nowait()
                except queue.Empty:
                    break
                worker = run_entry(worker, name, tests, record)
            if worker:
                worker.stop()

        threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def surprises(lines: list[dict[str, Any]]) -> list[str]:
    """Failures that are not listed, and listed ones that pass."""
    from conftest import expected_failures

    prefix = "test_device_type.py::TestGridPRIVATEUSE1::"
    listed = [test.removeprefix(prefix) for test, _ in expected_failures() if test.startswith(prefix)]
    known = re.compile("|".join(re.escape(test).replace(r"\*", ".*") for test in listed) or r"(?!)")
    out = []
    for line in lines:
        bad, expected = line["result"] in ("fail", "crash", "hang"), known.fullmatch(line["test"]) is not None
        if bad != expected and line["test"] != "way" and line["result"] != "none":
            out.append(f"{line['test']}: {line['result']}{'' if bad else ', though listed as a failure'}")
    return out


# ---- The table ---------------------------------------------------------------------------------------------------

SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128",
    "bool": "b", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float8_e4m3fn": "f8e4", "float8_e5m2": "f8e5", "float8_e4m3fnuz": "f8e4z",
    "float8_e5m2fnuz": "f8e5z",
}  # fmt: skip

HEAD = """# Operators

Generated by `make grid`: the tests that PyTorch's harness makes of its `op_db`, `module_db` and `optim_db` for device
`tpu` (`tests/test_device_type.py`), judged against the CPU with PyTorch's tolerances, in each dtype the CPU supports
but `complex32`. `*` after a dtype: its gradient passes as well.

- native: the operator has a lowering of its own. composite: PyTorch writes it in terms of others, which have.
- decomposition: PyTorch's Python decomposition, captured into one program. CPU fallback: some step runs on the CPU.

What fails stands in `tests/expected_failures.txt`, with reasons.
"""
COLUMNS = {
    "forward": "forward", "gradient": "gradient", "debug": "debug mode", "fused": "fused mode",
    "fused_gradient": "fused, gradient", "compiled": "torch.compile", "autocast": "autocast",
    "tpu_forms": "forms for a TPU",
}  # fmt: skip


def count(lines: list[dict[str, Any]]) -> str:
    results = [line["result"] for line in lines if line["result"] != "none"]
    return f"{results.count('pass')} of {len(results)}" if results else ""


def totals(lines: list[dict[str, Any]]) -> str:
    """The passes by dtype and mode, as Markdown."""
    by = collections.defaultdict(list)
    pairs = collections.defaultdict(set)
    for line in lines:
        if match := NAME.fullmatch(line["test"]):
            what, _, dtype = match.groups()
            by[what, dtype].append(line)
            by[what, "all"].append(line)
            if what in ("forward", "gradient"):
                pairs[line["entry"], dtype].add(line["result"])
    rows = ["| dtype | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for dtype in [*DTYPES, "all"]:
        cells = [count(by[what, dtype]) for what in COLUMNS]
        if any(cells):
            rows.append(f"| {dtype} | " + " | ".join(cells) + " |")
    judged = [results - {"none"} for results in pairs.values()]
    good, total = sum(r == {"pass"} for r in judged), sum(bool(r) for r in judged)
    bad = collections.Counter(line["result"] for line in lines if line["result"] in ("crash", "hang"))
    rows += [
        "",
        f"Operator and dtype, forward and gradient together: {good} of {total} ({100 * good / max(total, 1):.2f} %). "
        f"Crashes: {bad['crash']}, hangs: {bad['hang']}.",
        f"Modules in float32 and float64, training and evaluation: {count(by['module', 'all'])}. "
        f"Optimizers, in each of their implementations: {count(by['optimizer', 'all'])}.",
    ]
    return "\n".join(rows)


def table(lines: list[dict[str, Any]]) -> str:
    ways, cells = {}, collections.defaultdict(dict)
    for line in lines:
        if line["test"] == "way":
            ways[line["entry"]] = line["result"]
        elif (match := NAME.fullmatch(line["test"])) and match[1] in OF_OPERATORS:
            cells[line["entry"]][match[3], match[1]] = line["result"]
    served = collections.Counter(ways.values())
    out = [HEAD, "How the entries are served: " + ", ".join(f"{n} {w}" for w, n in served.most_common()) + ".", ""]
    out += [totals(lines), "", "| operator | served as | passes | fails |", "|---|---|---|---|"]
    for name in sorted(cells):
        passes, fails = [], []
        for dtype in DTYPES:
            if cells[name].get((dtype, "forward")) == "pass":
                passes.append(SHORT[dtype] + ("*" if cells[name].get((dtype, "gradient")) == "pass" else ""))
            for what in COLUMNS:
                result = cells[name].get((dtype, what))
                if result in ("fail", "crash", "hang"):
                    mode = "" if what == "forward" else f" {COLUMNS[what]}"
                    fails.append(SHORT[dtype] + mode + ("" if result == "fail" else f" ({result})"))
        if not passes and fails:
            fails = ["all"]
        out.append(f"| {name} | {ways.get(name, '?')} | {' '.join(passes)} | {', '.join(fails)} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regex", nargs="?", default=".")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", default="build/grid.jsonl")
    parser.add_argument("--table")
    parser.add_argument("--only-table", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker()
        return 0
    path = Path(args.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    start = time.monotonic()
    if not args.only_table:
        run(args, lines)
    if args.table:
        Path(args.table).write_text(table(lines))
    print(totals(lines))
    found = surprises(lines)
    print(f"{len(lines)} tests in {(time.monotonic() - start) / 60:.0f} minutes; not as listed: {len(found)}")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
