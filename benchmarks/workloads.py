# SPDX-License-Identifier: Apache-2.0
"""One workload on one device, as a JSON line: seconds of the first step, and of the best later one; the first's value.

usage: python benchmarks/workloads.py cpu|tpu WORKLOAD [compiled]
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

BACKENDS = {"tpu": "tpu", "cpu": "inductor"}


class Block(nn.Module):
    """A transformer block in plain operators: attention with an explicit mask, then an MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """4 layers, 128 wide, 4 heads, 256 tokens of vocabulary."""

    def __init__(self, vocabulary=256, width=128, layers=4, heads=4, length=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions[: ids.shape[1]])))


def maybe_compiled(device, function):
    if "compiled" not in sys.argv:
        return function
    return torch.compile(function, backend=BACKENDS[device])


def trainer(device, model, x, y, loss_of):
    model, x, y = model.to(device), x.to(device), y.to(device)
    model = maybe_compiled(device, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def tiny_ops(device):
    a, c = torch.ones(8, 8, device=device), torch.full((8, 8), 1e-6, device=device)

    def step():
        t = a
        for _ in range(2000):
            t = t + c
        return t.sum()

    return step


def elementwise(device):
    a = torch.randn(1 << 24).to(device)
    run = maybe_compiled(device, lambda a: torch.tanh(a) * a + a.sigmoid())
    kept = []  # else only what is read need be computed

    def step():
        kept[:] = [run(a)]
        return kept[0][:1].sum()

    return step


def matmul(device):
    a = torch.randn(2048, 2048).to(device)
    run = maybe_compiled(device, lambda a: a @ a)
    return lambda: run(a)[0, 0]


def mlp_train(device):
    layers = [m for _ in range(8) for m in (nn.Linear(256, 256), nn.ReLU())]
    x, y = torch.randn(64, 256), torch.randint(10, (64,))
    return trainer(device, nn.Sequential(*layers, nn.Linear(256, 10)), x, y, F.cross_entropy)


def gpt_train(device):
    x, y = torch.randint(256, (8, 128)), torch.randint(256, (8, 128))
    return trainer(device, GPT(), x, y, lambda out, want: F.cross_entropy(out.flatten(0, 1), want.flatten()))


def conv_train(device):
    def stage(a, b):
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]

    net = nn.Sequential(*stage(3, 32), *stage(32, 64), nn.Flatten(), nn.Linear(64 * 8 * 8, 10))
    return trainer(device, net, torch.randn(32, 3, 32, 32), torch.randint(10, (32,)), F.cross_entropy)


def gpt_decode(device):
    model, ids = maybe_compiled(device, GPT().to(device).eval()), torch.randint(256, (1, 128)).to(device)

    @torch.no_grad()
    def step():
        tokens = ids
        for _ in range(8):
            tokens = torch.cat([tokens[:, 1:], model(tokens)[:, -1].argmax(-1)[:, None]], 1)
        return tokens.sum()

    return step


def smollm(device):
    """24 tokens of SmolLM2-135M with a key-value cache, from an installed package's weights; compiled: with a static
    cache, so that all tokens but the first are one program."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import demo

    model, tokenizer = demo.load()
    model = model.to(device)
    cache = None
    if "compiled" in sys.argv:
        cache = "static"
        model.forward = torch.compile(model.forward, backend=BACKENDS[device], dynamic=False)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(device)

    how = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "cache_implementation": cache}

    @torch.no_grad()
    def step():
        return model.generate(**inputs, **how).sum()

    return step


def minilm(device):
    """A sentence encoder of all-MiniLM-L6-v2's shape (random weights) on 32 texts of up to 64 tokens, with its mean
    over the tokens that are there."""
    from transformers import BertConfig, BertModel

    shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertModel(BertConfig(vocab_size=30522, **shape), add_pooling_layer=False).eval().to(device)
    lengths = torch.randint(8, 65, (32, 1))
    ids, mask = torch.randint(30522, (32, 64)).to(device), (torch.arange(64) < lengths).long().to(device)

    def encode(ids, mask):
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).float()
        return F.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)

    encode = maybe_compiled(device, encode)

    @torch.no_grad()
    def step():
        return encode(ids, mask)[:, 0].sum()

    return step


def main() -> None:
    device, name = sys.argv[1:3]
    torch.manual_seed(0)
    step = globals()[name](device)
    start = time.perf_counter()
    value = step().item()
    first = time.perf_counter() - start
    times = []
    for _ in range(5 if name == "smollm" else 15):
        start = time.perf_counter()
        step().item()
        times.append(time.perf_counter() - start)
    print(json.dumps({"first": first, "best": min(times), "value": value}))


if __name__ == "__main__":
    main()
