# SPDX-License-Identifier: Apache-2.0
"""Loops whose scalars, offsets, seeds and learning rates change: nothing is planned or compiled after the second step.

And operators whose result's size depends on data: programs for sizes in powers of two, and one host read a call.
"""

import math
from collections.abc import Callable

import program_counts
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 50


def known() -> tuple[int, int]:
    """(plans, programs) so far."""
    return torch.tpu.metrics()["plans"], program_counts.needed()


def steady(step: Callable[[int], Tensor]) -> list[float]:
    """Runs the steps; returns the value of each."""
    values, counts = [], []
    for i in range(STEPS):
        values.append(step(i).item())
        counts.append(known())
    grown = [i for i in range(2, STEPS) if counts[i] != counts[i - 1]]
    assert not grown, f"plans or programs were made in the steps {grown}: {[counts[i] for i in (1, *grown)]}"
    assert all(map(math.isfinite, values))
    return values


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """One update by the gradient of `loss`."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def project(self, x: Tensor) -> list[Tensor]:
        return [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        return self.out(a.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 50, width: int = 16, heads: int = 2, length: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def test_mlp_with_adam() -> None:
    """The learning rate follows a schedule, the loss a weight of its own; data are slices at a moving offset."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to("tpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [10])
    data = torch.randn(16 * STEPS, 8, device="tpu")

    def step(i: int) -> Tensor:
        x = data[16 * i : 16 * (i + 1)]
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        loss = F.mse_loss(model(x + 0.01 * i), x.sum(1, keepdim=True)) * (1 + 0.1 * i)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 + 0.1 * i)
        optimizer.step()
        schedule.step()
        return loss.detach() / (1 + 0.1 * i)

    values = steady(step)
    assert sum(values[-5:]) < sum(values[:5])


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("form", ["foreach", "single"])
def test_optimizers(optimizer: str, form: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to("tpu")
    extra = {"momentum": 0.9} if optimizer in ("SGD", "RMSprop") else {}
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01, foreach=form == "foreach", **extra)
    schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.97)
    x = torch.randn(16, 8, device="tpu")

    def step(i: int) -> Tensor:
        made.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        made.step()
        schedule.step()
        return loss.detach()

    steady(step)


def test_gpt_with_dropout() -> None:
    """A new seed each step, and a learning rate written by hand into fused AdamW."""
    torch.manual_seed(0)
    model = GPT().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    text = torch.arange(4 * STEPS + 64, device="tpu") % 50

    def step(i: int) -> Tensor:
        torch.manual_seed(i)
        batch = torch.stack([text[4 * i + j : 4 * i + j + 17] for j in range(4)])
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + i)
        with torch.autocast("tpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())
        return descend(optimizer, loss)

    values = steady(step)
    assert values[-1] < values[0]


def test_conv_net_with_batch_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
        nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4),
    ).to("tpu")  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    images = torch.randn(8, 3, 12, 12, device="tpu")
    labels = torch.arange(8, device="tpu") % 4

    def step(i: int) -> Tensor:
        optimizer.param_groups[0]["lr"] = 0.1 * 0.95**i
        noisy = images + torch.randn_like(images) * (0.01 * i)
        loss = F.cross_entropy(model(noisy), labels, label_smoothing=0.1)
        return descend(optimizer, loss)

    values = steady(step)
    assert values[-1] < values[0]
    assert model[1].num_batches_tracked.item() == STEPS


@torch.no_grad()
@pytest.mark.parametrize("write", ["slice", "index_copy", "index_put"])
def test_generation_with_static_cache(write: str) -> None:
    """Keys and values go into a buffer of fixed length at a growing position; temperature and seed change."""
    torch.manual_seed(0)
    length = STEPS + 2
    model = GPT(length=length).to("tpu").eval()
    caches = [tuple(torch.zeros(1, 2, length, 8, device="tpu") for _ in range(2)) for _ in model.blocks]
    places = torch.arange(length, device="tpu")
    tokens = torch.zeros(1, length, dtype=torch.int64, device="tpu")

    def store(cache: Tensor, new: Tensor, at: int) -> None:
        if write == "slice":
            cache[:, :, at : at + 1] = new
        elif write == "index_copy":
            cache.index_copy_(2, torch.tensor([at], device="tpu"), new)
        else:
            cache[:, :, torch.tensor([at], device="tpu")] = new

    def logits(at: int) -> Tensor:
        x = model.token(tokens[:, at : at + 1]) + model.position.weight[at]
        for block, (keys, values) in zip(model.blocks, caches, strict=True):
            q, k, v = block.attention.project(block.norm1(x))
            store(keys, k, at)
            store(values, v, at)
            a = F.scaled_dot_product_attention(q, keys, values, attn_mask=(places <= at)[None, None, None])
            x = x + block.attention.out(a.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return model.head(model.norm(x))[0, -1]

    def step(i: int) -> Tensor:
        torch.manual_seed(100 + i)
        scores = logits(i) / (0.5 + 0.02 * i)
        scores = scores.masked_fill(scores < scores.topk(5).values[-1], -math.inf)
        chosen = torch.multinomial(scores.softmax(-1), 1)
        tokens[:, i + 1] = chosen
        return chosen

    steady(step)
    # The cached steps say what the whole sequence says.
    whole = model(tokens[:, :STEPS])[0, -1]
    torch.testing.assert_close(logits(STEPS - 1), whole, rtol=1e-4, atol=1e-4)


def training(model: nn.Module, loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Callable[[int], Tensor]:
    """A step of the compiled model on a text, with another seed, place and learning rate each time."""
    compiled = torch.compile(model, backend="tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.arange(STEPS + 64, device="tpu") % 50

    def step(i: int) -> Tensor:
        torch.manual_seed(i)
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + i)
        return descend(optimizer, loss_of(compiled, text[i : i + 16], text[i + 1 : i + 17]))

    return step


def test_compiled_training() -> None:
    torch.manual_seed(0)
    model = GPT().to("tpu")
    steady(training(model, lambda compiled, given, wanted: F.cross_entropy(compiled(given[None])[0], wanted)))


def test_compiled_training_of_mlp() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 50)).to(
        "tpu"
    )
    step = training(model, lambda compiled, given, wanted: F.cross_entropy(compiled(given), wanted))
    values = steady(step)
    assert values[-1] < values[0]


# ---- Scalars and offsets, operator by operator ----

CHANGING: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": lambda x, i: x + 0.1 * i,
    "alpha": lambda x, i: x.add(x, alpha=0.5 + i),
    "mul by an int": lambda x, i: x * (i + 2),
    "rsub": lambda x, i: (0.5 + i) - x,
    "division": lambda x, i: x / (0.5 + i),
    "remainder": lambda x, i: x % (0.5 + i),
    "comparison": lambda x, i: x > 0.1 * i,
    "clamp": lambda x, i: x.clamp(-0.1 * i, 0.2 * i + 1),
    "where": lambda x, i: torch.where(x > 0, x, 0.1 * i),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 0.3 * i),
    "fill": lambda x, i: torch.empty_like(x).fill_(i),
    "full": lambda x, i: torch.full((3,), 0.1 * i, device=x.device),
    "lerp": lambda x, i: x.lerp(x.flip(0), 0.01 * i + 0.2),
    "addcmul": lambda x, i: x.addcmul(x, x, value=0.5 + i),
    "addcdiv": lambda x, i: x.addcdiv(x, x + 9, value=0.5 + i),
    "addmm": lambda x, i: torch.addmm(x, x, x, beta=0.5 + i, alpha=2.5 + i),
    "baddbmm": lambda x, i: torch.baddbmm(x[None], x[None], x[None], beta=0.5 + i, alpha=2.5 + i),
    "leaky_relu": lambda x, i: F.leaky_relu(x, 0.01 * (i + 1)),
    "softplus": lambda x, i: F.softplus(x, 0.5 + i),
    "threshold": lambda x, i: F.threshold(x, 0.1 * i, 0.2 * i),
    "dropout": lambda x, i: F.dropout(x, 0.1 + 0.01 * i),
    "uniform": lambda x, i: torch.empty_like(x).uniform_(-1.0 - i, 1.0 + i),
    "normal": lambda x, i: torch.empty_like(x).normal_(0.1 * i, 1.0 + i),
    "randint": lambda x, i: torch.randint(i + 1, i + 10, (4,), device=x.device),
    "bernoulli": lambda x, i: torch.empty_like(x).bernoulli_(0.01 * i + 0.1),
    "slice": lambda x, i: x.flatten()[i : i + 4] * 2,
    "write into a slice": lambda x, i: x.clone().flatten()[i : i + 4].add_(1),
    "select": lambda x, i: x[i % 8].sum(),
    "write of a scalar": lambda x, i: x.clone().flatten()[i].fill_(0.5 * i),
    "tensor of a number": lambda x, i: x + torch.tensor(0.5 * i, device=x.device),
    "index with numbers": lambda x, i: x[[i % 8, 0]],
    "narrow": lambda x, i: x.narrow(1, i % 5, 2).exp(),
    "scalar tensor operand": lambda x, i: x * torch.tensor(0.5 * i),
    "arange with a start": lambda x, i: torch.arange(i, i + 8, device=x.device) + x,
    "copy from the CPU": lambda x, i: torch.full((8, 8), float(i)).to(x.device) + x,
}


@pytest.mark.parametrize("name", CHANGING)
def test_changing_scalars(name: str) -> None:
    x = torch.randn(8, 8, device="tpu")
    steady(lambda i: CHANGING[name](x, i).sum())


# ---- Sizes that depend on data ----

SIZED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "nonzero": lambda mask, n, x: mask.nonzero(),
    "nonzero as a tuple": lambda mask, n, x: mask.nonzero(as_tuple=True)[0],
    "argwhere": lambda mask, n, x: torch.argwhere(mask),
    "where": lambda mask, n, x: torch.where(mask)[0],
    "masked_select": lambda mask, n, x: x.masked_select(mask),
    "boolean mask": lambda mask, n, x: x[mask],
    "unique": lambda mask, n, x: n.cumsum(0).unique(),
    "unique with counts": lambda mask, n, x: n.cumsum(0).unique(return_inverse=True, return_counts=True)[2],
    "unique_consecutive": lambda mask, n, x: n.cumsum(0).unique_consecutive(),
    "bincount": lambda mask, n, x: torch.bincount(n.cumsum(0)),
    "repeat_interleave": lambda mask, n, x: torch.repeat_interleave(n),
    "repeat_interleave of values": lambda mask, n, x: x.repeat_interleave(n),
    "repeat_interleave of rows": lambda mask, n, x: x.unflatten(0, (-1, 1)).repeat_interleave(n, dim=0),
}


def host_reads(call: Callable[[], object]) -> int:
    """Copies to the host, whoever asks for them."""
    with torch.autograd.profiler.profile() as profile:
        call()
    names = [event.name for event in profile.function_events]
    return names.count("aten::_copy_from") - names.count("tpu::copy_")  # the second stays on the device


@pytest.mark.parametrize("name", SIZED)
def test_sized_results(name: str) -> None:
    f = SIZED[name]
    masks = [torch.arange(100) < count for count in range(1, 61)]
    arguments = [(mask, mask.long(), torch.arange(100.0)) for mask in masks]
    moved = [tuple(t.to("tpu") for t in each) for each in arguments]
    before = known()[1]
    results = [f(*each) for each in moved]
    grown = known()[1] - before
    assert grown <= 16, (
        f"{grown} programs for 60 counts"
    )  # two for each of the sizes 1, 2, 4 .. 64, and two for the count
    assert host_reads(lambda: f(*moved[7])) == 1
    for result, each in zip(results, arguments, strict=True):
        torch.testing.assert_close(result.cpu(), f(*each))


POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "nonzero": lambda x: (x > 0).nonzero()[:, 0],
    "repeat_interleave": lambda x: torch.repeat_interleave(torch.arange(len(x), device=x.device) % 3),
    "unique": lambda x: x.unique(return_inverse=True)[1],
    "unique_consecutive": lambda x: x.unique_consecutive(return_inverse=True)[1],
    "sort": lambda x: x.sort()[1],
    "topk": lambda x: x.topk(5)[1],
    "arange": lambda x: torch.arange(3, len(x), device=x.device),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_own_positions_are_not_checked(name: str) -> None:
    """Positions that an operator gave are in range: an index by them is one launch, and the host reads nothing."""
    x = torch.randn(20, device="tpu")
    at = POSITIONS[name](x)
    before = torch.tpu.metrics()["launches"]
    result = x.index_select(0, at)
    assert torch.tpu.metrics()["launches"] == before + 1
    torch.testing.assert_close(result.cpu(), x.cpu()[at.cpu()])
