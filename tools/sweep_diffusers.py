# SPDX-License-Identifier: Apache-2.0
"""Diffusers on `tpu` against the CPU: every scheduler, and every pipeline that tiny parts build.

    python tools/sweep_diffusers.py                          all; goes on where it stopped
    python tools/sweep_diffusers.py --only FluxPipeline      some
    python tools/sweep_diffusers.py --table                  writes docs/diffusers.md from the results

A pipeline is moved with `pipe.to("tpu")` and run whole: prompt or image in, image out. Then its denoiser is compiled
and run for 2 and for 4 steps; the second run may not trace it again. Nothing is downloaded.
"""

import argparse
import contextlib
import copy
import inspect
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["DIFFUSERS_VERBOSITY"] = "critical"
os.environ.setdefault("TORCH_TPU_CPU_FALLBACK", "allow")
warnings.simplefilter("ignore")

import diffusers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from sweep import compare, parts, pool  # noqa: E402

RESULTS = ROOT / "build" / "sweep"
DENOISERS = ("unet", "transformer", "prior", "decoder")


def schedulers() -> list[str]:
    found = {n: getattr(diffusers, n) for n in dir(diffusers) if n.endswith("Scheduler")}
    # One that needs a package that is not there is no SchedulerMixin.
    return [n for n, c in found.items() if issubclass(c, diffusers.SchedulerMixin) and hasattr(c, "set_timesteps")]


def steps(name: str, device: str) -> compare.Tensors:
    """A scheduler's loop over a fixed model: the sample after each step."""
    torch.manual_seed(0)
    scheduler = getattr(diffusers, name)()
    count = 6
    extra = {"mu": 1.0} if getattr(scheduler.config, "use_dynamic_shifting", False) else {}
    scheduler.set_timesteps(count, device=device, **extra)
    sample = torch.randn(1, 4, 8, 8).to(device) * getattr(scheduler, "init_noise_sigma", 1.0)
    out = {}
    with compare.CpuRandom():
        for i, t in enumerate(scheduler.timesteps):
            scaled = scheduler.scale_model_input(sample, t) if hasattr(scheduler, "scale_model_input") else sample
            guess = torch.tanh(scaled * 0.5)
            sample = scheduler.step(guess, t, sample, return_dict=False)[0]
            out[f".{i}"] = sample.detach().cpu()
    return out


def run(pipe: Any, arguments: dict[str, Any], seed: int = 0, cpu_random: bool = True) -> compare.Tensors:
    known = inspect.signature(type(pipe).__call__).parameters
    if "generator" in known:
        arguments = {**arguments, "generator": torch.Generator("cpu").manual_seed(0)}
    torch.manual_seed(seed)
    with torch.no_grad(), compare.CpuRandom() if cpu_random else contextlib.nullcontext():
        out = pipe(**copy.deepcopy(arguments))
    values = out if isinstance(out, (tuple, dict)) else vars(out)
    import numpy

    def tensor(v: Any) -> Any:
        if isinstance(v, numpy.ndarray):
            return torch.from_numpy(v) if v.dtype != object else None
        if isinstance(v, (list, tuple)):
            return [tensor(e) for e in v]
        if hasattr(v, "getbands"):
            return torch.from_numpy(numpy.array(v))
        return v

    return {n: t.detach().cpu() for n, t in compare.tensors({k: tensor(v) for k, v in dict(values).items()})}


def task(name: str, report: pool.Report) -> None:
    torch.set_num_threads(1)
    diffusers.utils.logging.disable_progress_bar()
    if name.endswith("Scheduler"):
        try:
            want = steps(name, "cpu")
            report(stage="cpu")
        except Exception as error:
            report(stage="cpu", error=short(error))
            return
        judge("eager", report, lambda: steps(name, "tpu"), want)
        return
    try:
        pipe = parts.build(name)
        pipe.set_progress_bar_config(disable=True)
        arguments = parts.arguments(pipe)
        start = copy.deepcopy(arguments)
        want = run(pipe, arguments)
        if not want:
            raise parts.Unknown("no tensors in the output")
        random = compare.difference(run(pipe, start, seed=1), want)[0] > 0
        report(stage="cpu", random=random)
    except Exception as error:
        report(stage="cpu", error=short(error), trace=traceback.format_exc()[-2000:])
        return
    judge("eager", report, lambda: run(pipe.to("tpu"), start), want)
    denoiser = next((d for d in DENOISERS if isinstance(getattr(pipe, d, None), torch.nn.Module)), None)
    # A dispatch mode keeps Dynamo from compiling, so that what draws numbers besides the generator can't be compared.
    if denoiser is None or "num_inference_steps" not in start or random:
        return
    compiled = torch.compile(getattr(pipe, denoiser), backend="tpu", dynamic=False)
    setattr(pipe, denoiser, compiled)
    traced: list[int] = []

    def twice() -> compare.Tensors:
        from torch._dynamo.utils import counters

        for count in (2, 4):
            out = run(pipe, {**start, "num_inference_steps": count}, cpu_random=False)
            traced.append(counters["stats"]["unique_graphs"])
        return out

    judge("compiled", report, twice, want, lambda: {"graphs": traced})


def judge(stage: str, report: pool.Report, call: Any, want: compare.Tensors, more: Any = dict) -> None:
    torch.tpu.reset_metrics()
    try:
        error, where = compare.difference(call(), want)
        report(
            stage=stage, forward=error, backward=0.0, where=where, **more(),
            fallbacks={n: c for n, c in torch.tpu.fallback_stats().items() if c},
        )  # fmt: skip
    except Exception as problem:
        report(stage=stage, error=short(problem), trace=traceback.format_exc()[-3000:])


def short(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno}]" if frames else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}{at}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="schedulers and pipelines")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder, kept for the next run")
    parser.add_argument("--table", action="store_true", help="write docs/diffusers.md and stop")
    args = parser.parse_args()
    if args.table:
        from sweep import table

        table.diffusers(args.results, ROOT / "docs" / "diffusers.md")
        return
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    args.results.mkdir(parents=True, exist_ok=True)
    names = args.only or [*schedulers(), *parts.pipelines()]
    pool.run_all(names, task, args.results / "diffusers.jsonl", args.limit, args.jobs)


if __name__ == "__main__":
    sys.exit(main())
