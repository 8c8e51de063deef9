# SPDX-License-Identifier: Apache-2.0
"""The pages docs/transformers.md and docs/diffusers.md, from the results of the sweeps."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from sweep import compare, pool

WIDE = 1e-6  # scaled difference in float64
Stages = dict[str, dict[str, Any]]


def verdict(stages: Stages, mode: str) -> str:
    """match, float64, differs, error, time, crash, memory, skipped, not built or not run."""
    end = stages.get("end", {}).get("end", "")
    if "error" in stages.get("cpu", {}):
        return "not built"
    record = stages.get(mode)
    if record is None:
        if not end:
            return "not run"
        if "cpu" not in stages:  # the CPU did not get through it either
            return "not built"
        return "time" if end == "time" else "crash" if end.startswith("signal") else "error"
    if "skipped" in record:
        return "skipped"
    if "error" in record:
        return "error"
    if max(record["forward"], record["backward"]) <= compare.TOLERANCE:
        return "match"
    return "float64" if record.get("wide", 1.0) <= WIDE else "differs"


def cause(stages: Stages, mode: str, kind: str) -> str:
    record = stages.get(mode, {})
    if kind == "float64":
        worst = max(record["forward"], record["backward"])
        return f"{worst:.0e} in float32, {record['wide']:.0e} in float64; the CPU's float32 is {record['own']:.0e} off"
    if kind == "differs":
        return f"forward {record['forward']:.0e}, backward {record['backward']:.0e} in `{record.get('where', '')}`"
    if kind == "error":
        return clean(record.get("error") or stages.get("task", {}).get("error", "").strip().splitlines()[-1:] or "")
    return {"time": "over the time limit", "crash": "the process ended"}.get(kind, "")


def clean(text: Any) -> str:
    """One line without paths, fit for a table."""
    text = " ".join(text) if isinstance(text, list) else text
    text = re.sub(r"(/[\w.+-]+){2,}/", "", " ".join(text.split()))
    return text.replace("|", "/")[:200]


def totals(results: dict[str, Stages], mode: str) -> Counter:
    return Counter(verdict(stages, mode) for stages in results.values())


def summary(count: Counter, mode: str) -> str:
    agree = count["match"] + count["float64"]
    ran = agree + count["differs"]
    tried = ran + count["error"] + count["time"] + count["crash"]
    if not tried:
        return f"| {mode} | | | | | | |"
    return (
        f"| {mode} | {tried} | {ran} ({ran / tried:.1%}) | {agree} ({agree / tried:.1%}) | {count['float64']} | "
        f"{count['time']} | {count['crash']} |"
    )


HEADER = [
    "| mode | tried | run | match | of these in float64 alone | over time | crashes |",
    "|---|---|---|---|---|---|---|",
]


def misses(results: dict[str, Stages], mode: str) -> list[str]:
    rows = []
    for name, stages in sorted(results.items()):
        kind = verdict(stages, mode)
        if kind in ("float64", "differs", "error", "time", "crash"):
            rows.append(f"| {name} | {mode} | {kind} | {cause(stages, mode, kind)} |")
    return rows


def fallbacks(results: list[dict[str, Stages]], modes: list[str]) -> list[str]:
    seen: dict[str, list[str]] = {}
    for found, mode in zip(results, modes, strict=True):
        for name, stages in found.items():
            for operator in stages.get(mode, {}).get("fallbacks", {}):
                seen.setdefault(operator, []).append(name)
    return [f"- `{op}`: {', '.join(sorted(set(names))[:8])}" for op, names in sorted(seen.items())] or ["None."]


def not_built(results: dict[str, Stages], mode: str) -> list[str]:
    rows = []
    for name, stages in sorted(results.items()):
        if verdict(stages, mode) == "not built":
            error = stages.get("cpu", stages.get("task", {})).get("error", "out of time or memory on the CPU")
            rows.append(f"| {name} | {clean(error.split(' | ')[0])} |")
    return rows


def transformers(folder: Path, page: Path) -> None:
    import transformers as library

    modes = ["eager", "compiled"]
    results = [pool.by_name(folder / f"transformers_{mode}.jsonl") for mode in modes]
    lines = [
        "# Models of Transformers",
        "",
        "Printed by `python tools/sweep_transformers.py --table`; do not edit.",
        "",
        f"Every model type in the auto mappings of Transformers {library.__version__} that a tiny configuration builds "
        "without download: forward, loss and backward on `tpu` against the CPU, in a process of its own. They match "
        "where no result and no gradient differs by more than 1e-4 of its scale in float32. Where one does, both run "
        "in float64 too: equal there (to 1e-6), the difference is rounding that the model magnifies, such as a value "
        "within rounding of a kink or of its neighbour in a top-k, and no other arithmetic.",
        "",
        *HEADER,
        *[summary(totals(found, mode), mode) for found, mode in zip(results, modes, strict=True)],
        "",
        "What is not tried: types that no rule here builds or that the CPU refuses (see Not built), and under compile "
        "those that draw random numbers in evaluation.",
        "",
        "## Misses",
        "",
        "| model type | mode | what | cause |",
        "|---|---|---|---|",
        *[row for found, mode in zip(results, modes, strict=True) for row in misses(found, mode)],
        "",
        "## Operators that ran on the CPU",
        "",
        *fallbacks(results, modes),
        "",
        "## Not built",
        "",
        "The first thing that stood in the way; needs of other packages, of files, and of inputs that no rule makes.",
        "",
        "| model type | why |",
        "|---|---|",
        *not_built(results[0], "eager"),
        "",
        "## All that were tried",
        "",
        "| model type | class, rules and inputs | eager | compiled |",
        "|---|---|---|---|",
    ]
    for name in sorted(results[0]):
        eager = verdict(results[0][name], "eager")
        if eager not in ("not built", "not run"):
            compiled = verdict(results[1].get(name, {}), "compiled")
            what = clean(results[0][name].get("cpu", {}).get("what", ""))
            lines.append(f"| {name} | {what} | {eager} | {compiled} |")
    page.write_text("\n".join(lines) + "\n")


def diffusers(folder: Path, page: Path) -> None:
    import diffusers as library

    results = pool.by_name(folder / "diffusers.jsonl")
    schedulers = {n: s for n, s in results.items() if n.endswith("Scheduler")}
    pipelines = {n: s for n, s in results.items() if n not in schedulers}
    compiled = {n: s for n, s in pipelines.items() if "compiled" in s}
    again = [n for n, s in compiled.items() if len(set(s["compiled"].get("graphs", [])[:2])) > 1]
    lines = [
        "# Diffusers",
        "",
        "Printed by `python tools/sweep_diffusers.py --table`; do not edit.",
        "",
        f"Diffusers {library.__version__}: each scheduler in a loop of six steps, and each pipeline that tiny parts "
        'build, run whole after `pipe.to("tpu")`, against the CPU. Then the denoiser is compiled, and run for two and '
        "for four steps.",
        "",
        HEADER[0].replace("mode", "what"),
        HEADER[1],
        summary(totals(schedulers, "eager"), "schedulers"),
        summary(totals(pipelines, "eager"), "pipelines"),
        summary(totals(compiled, "compiled"), "pipelines, compiled denoiser"),
        "",
        f"Denoisers that were traced again in the second run: {', '.join(again) or 'none'}.",
        "",
        "## Misses",
        "",
        "| name | mode | what | cause |",
        "|---|---|---|---|",
        *misses(schedulers | pipelines, "eager"),
        *misses(compiled, "compiled"),
        "",
        "## Operators that ran on the CPU",
        "",
        *fallbacks([results], ["eager"]),
        "",
        "## Match",
        "",
        "Schedulers: " + ", ".join(n for n in sorted(schedulers) if verdict(schedulers[n], "eager") == "match") + ".",
        "",
        "Pipelines: " + ", ".join(n for n in sorted(pipelines) if verdict(pipelines[n], "eager") == "match") + ".",
        "",
        "## Not built",
        "",
        "The first thing that stood in the way: parts and arguments that no rule here makes, or other packages.",
        "",
        "| name | why |",
        "|---|---|",
        *not_built(results, "eager"),
    ]
    page.write_text("\n".join(lines) + "\n")
