# SPDX-License-Identifier: Apache-2.0
"""Every model type of Transformers that a tiny configuration builds, on `tpu` against the CPU.

    python tools/sweep_transformers.py                    all types, eager and compiled; goes on where it stopped
    python tools/sweep_transformers.py --only bert vit    some
    python tools/sweep_transformers.py --table            writes docs/transformers.md from the results

Each type runs in a process of its own: forward, loss and backward of the same random parameters. The results match
where no tensor differs by more than 1e-4 of its scale (tools/sweep/compare.py). Nothing is downloaded.
"""

import argparse
import copy
import functools
import hashlib
import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TORCH_TPU_CPU_FALLBACK", "allow")
warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from sweep import compare, inputs, pool, tiny  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES  # noqa: E402

RESULTS = ROOT / "build" / "sweep"
# The head a model is tried with: the first of these that it has.
TASKS = (
    "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "MASKED_LM", "CAUSAL_LM", "CTC",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION",
    "UNIVERSAL_SEGMENTATION", "SEMANTIC_SEGMENTATION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "SEQUENCE_CLASSIFICATION",
)  # fmt: skip
WITH_LABELS = ("CausalLM", "MaskedLM", "ConditionalGeneration", "LMHeadModel")
LARGEST = 40_000_000  # parameters


def mappings() -> dict[str, dict[str, str]]:
    ends = "_MAPPING_NAMES"
    return {
        n.removeprefix("MODEL_FOR_").removesuffix(ends): getattr(modeling_auto, n)
        for n in dir(modeling_auto)
        if n.endswith(ends) and n.startswith("MODEL_")
    }


def classes(model_type: str) -> list[type]:
    """The classes to try, the one with the preferred head first."""
    found = mappings()
    order = [*TASKS, "MODEL_MAPPING_NAMES".removesuffix("_MAPPING_NAMES"), *found]
    names: list[str] = []
    for task in order:
        entry = found.get(task, {}).get(model_type)
        names += [entry] if isinstance(entry, str) else list(entry or ())
    out = []
    for name in dict.fromkeys(names):
        try:
            out.append(getattr(transformers, name))
        except Exception:  # needs a package that is not there
            continue
    out = [c for c in out if isinstance(c, type) and issubclass(c, transformers.PreTrainedModel)][:3]
    return out or _in_its_module(CONFIG_MAPPING[model_type])


def _in_its_module(config: type) -> list[type]:
    """Model classes of a configuration that no mapping has: parts of a larger model, in the modules beside it."""
    package, _, name = config.__module__.rpartition(".")
    try:
        module = importlib.import_module(f"{package}.{name.replace('configuration_', 'modeling_')}")
    except ImportError:  # has no model, or needs a package that is not there
        return []
    kinds = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, transformers.PreTrainedModel)]
    kinds = [c for c in kinds if c.config_class is config and not c.__name__.endswith("PreTrainedModel")]
    return sorted(kinds, key=lambda cls: cls.__name__)[:3]


def make(cls: type, config) -> torch.nn.Module:
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
    except Exception:  # reads values while it is built
        size = 0
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f}M parameters")
    torch.manual_seed(0)
    model = cls(copy.deepcopy(config)).float().eval()
    if sum(p.numel() for p in model.parameters()) > LARGEST:
        raise ValueError("too large")
    compare.randomise(model)
    return model


def subject(model_type: str) -> tuple[compare.Subject, str]:
    """The first class, configuration and inputs that the CPU runs; raises the last error where none does."""
    errors: dict[str, None] = {}
    found = classes(model_type)
    if not found:
        raise LookupError("no model class")
    for cls in found:
        for rules, config in tiny.forms(CONFIG_MAPPING[model_type]):
            try:
                if isinstance(config, Exception):
                    raise config
                model = make(cls, config)
            except Exception as error:
                errors[f"{cls.__name__} ({rules}): {_short(error)}"] = None
                continue
            gone = inputs.missing(model, config)
            if gone:
                errors[f"{cls.__name__}: no input rule for {', '.join(gone)}"] = None
            for given in inputs.inputs(model, config, cls.__name__.endswith(WITH_LABELS)):
                try:
                    return compare.Subject(model, given), f"{cls.__name__} ({rules}; {', '.join(given)})"
                except Exception as error:
                    errors[f"{cls.__name__} ({rules}; {', '.join(given)}): {_short(error)}"] = None
    raise RuntimeError(" | ".join(errors) or "no inputs")


def _short(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno}]" if frames else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}{at}"


def task(mode: str, model_type: str, report: pool.Report) -> None:
    torch.set_num_threads(1)
    try:
        case, what = subject(model_type)
    except Exception as error:
        report(stage="cpu", error=str(error)[:3000])
        return
    report(stage="cpu", what=what, random=case.random, parameters=sum(p.numel() for p in case.model.parameters()))
    if case.random and mode == "compiled":
        report(stage=mode, skipped="draws random numbers")  # see compare.CpuRandom: it keeps Dynamo from compiling
        return
    try:
        model = copy.deepcopy(case.fresh).to("tpu")
        run = model if mode == "eager" else torch.compile(model, backend="tpu", dynamic=False)
        report(stage=mode, **case.check(model, run))
    except Exception as error:
        report(stage=mode, error=_short(error), trace=traceback.format_exc()[-3000:])


def _warm_up() -> None:
    """Imports what every child needs; the device stays closed, and no backward runs, as neither survives a fork."""
    for name in ("torch._dynamo.symbolic_convert", "torch._functorch.aot_autograd", "torch_tpu.compile.backend"):
        importlib.import_module(name)
    for name in ("generation.utils", "modeling_utils", "models.llama.modeling_llama", "models.bert.modeling_bert"):
        importlib.import_module(f"transformers.{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="model types")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=240, help="seconds a model type")
    parser.add_argument("--modes", nargs="*", default=["eager", "compiled"], choices=("eager", "compiled"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder, kept for the next run")
    parser.add_argument("--table", action="store_true", help="write docs/transformers.md and stop")
    args = parser.parse_args()
    if args.table:
        from sweep import table

        table.transformers(args.results, ROOT / "docs" / "transformers.md")
        return
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    args.results.mkdir(parents=True, exist_ok=True)
    # In an order that is always the same and mixes the families, so that a part of the sweep speaks for the whole.
    names = args.only or sorted(CONFIG_MAPPING_NAMES, key=lambda name: hashlib.md5(name.encode()).digest())
    _warm_up()
    for mode in args.modes:
        results = args.results / f"transformers_{mode}.jsonl"
        pool.run_all(names, functools.partial(task, mode), results, args.limit, args.jobs)


if __name__ == "__main__":
    sys.exit(main())
