# SPDX-License-Identifier: Apache-2.0
"""Functions of sizes that vary, compiled once for each bucket: values against the CPU, and how often they compile."""

import copy
from collections.abc import Callable
from typing import Any

import program_counts
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

SIZES = (19, 23, 17, 32, 20, 31)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled_programs() -> int:
    """Without those that only look at indices: a small one for each size of indices, which has its bucket as well."""
    return program_counts.needed() - sum(entry.name == "check_values" for entry in torch.tpu.compile_report())


def on_tpu(values: Any, dim: int | None = None) -> Any:
    def move(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        moved = t.detach().tpu().requires_grad_(t.requires_grad)
        if dim is not None and t.dim() > dim:
            torch._dynamo.mark_dynamic(moved, dim)
        return moved

    return tree_map(move, values)


def close(got: Any, want: Any) -> None:
    got = tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, got)
    want = tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, want)
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4, equal_nan=True)


def rows(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 6),)


def batch(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(3, n, 6),)


# What the function does, on what, and whether sizes share a program: one that can't is right all the same.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "pointwise": (lambda x: (x.sin() / x, x > 0, 1 / x), rows),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(), x.mean(0), x.var(0), x.std(), x.prod(0)), rows),
    "extremes": (lambda x: (x.amax(0), x.amin(), x.argmax(0), x.argmin(), x.max(0), x.median(0)), rows),
    "of nan": (lambda x: ((x / x.abs().mul(0)).sum(0), (x / 0).amax(0), torch.log(x).sum(0)), rows),
    "all any": (lambda x: ((x > -9).all(0), (x > 3).any(), x.count_nonzero(0)), rows),
    "norms": (lambda x: (x.norm(), x.norm(dim=0), F.normalize(x, dim=0), torch.linalg.vector_norm(x, 1)), rows),
    "softmax": (lambda x: (x.softmax(0), x.log_softmax(0), x.logsumexp(0), x.softmax(1)), rows),
    "cumulative": (lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0)[0], x.flip(0).cumsum(0)), rows),
    "products": (lambda x: (x.t() @ x, x @ x.t(), (x @ x.t()) @ x, torch.einsum("ni,nj->ij", x, x)), rows),
    "inf in products": (lambda x: (x.t() @ x, (1 / (x - x)).t() @ x), rows),
    "sorts": (lambda x: (x.sort(0), x.sort(0, descending=True), torch.argsort(x, dim=0, stable=True)), rows),
    "top": (lambda x: (x.topk(5, 0), x.topk(3, 0, largest=False), x.kthvalue(2, 0)), rows),
    "slices": (lambda x: (x[1:], x[:-1], x[-1], x[-3:], x[::2], x[2:9], x[x.shape[0] // 2 :]), rows),
    "diff": (lambda x: (x[1:] - x[:-1], x.diff(dim=0)), rows),
    "moves": (lambda x: (x.t().contiguous(), x.flip(0), x.roll(2, 0), x.roll(-3, 0), x.roll(1, 1)), rows),
    "pads": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 3, 2)), F.pad(x, (0, 0, -2, -1), value=5.0)), rows),
    "reflects": (lambda x: (F.pad(x, (0, 0, 2, 3), mode="replicate"), F.pad(x, (2, 3), mode="reflect")), batch),
    "cats": (lambda x: (torch.cat([x, x * 2]), torch.cat([x, x[:2], x]), torch.stack([x, -x], 1)), rows),
    "reshapes": (lambda x: (x.reshape(-1), x.reshape(-1, 3), x.t().reshape(-1), x.reshape(2, 3, -1)), rows),
    "joined": (lambda x: (x.reshape(-1, 6), x.reshape(-1), x.transpose(0, 1).reshape(-1, 18), x.flatten(1)), batch),
    "factories": (
        lambda x: (torch.arange(x.shape[0], device=x.device), torch.ones(x.shape[0], device=x.device) * x.shape[0]),
        rows,
    ),
    "numbers": (lambda x: (x * x.shape[0], x.sum() / x.shape[0], x + x.numel(), x.shape[0] ** 0.5 * x), rows),
    "triangles": (lambda x: ((x @ x.t()).tril(), (x @ x.t()).triu(1), torch.eye(x.shape[0], device=x.device)), rows),
    "masks": (lambda x: (x.masked_fill(x > 0, 0), torch.where(x > 0, x, 1.0), x.clamp(-1, 1)), rows),
    "expands": (lambda x: (x[:, None] - x[None], x.unsqueeze(0).expand(2, -1, -1), x.repeat(2, 1)), rows),
    "gathers": (
        lambda x, i: (x[i], x.index_select(0, i), x.gather(0, i[:, None].expand(-1, 6)), F.embedding(i, x)),
        lambda n: (torch.randn(n, 6), torch.randint(0, n, (n,))),
    ),
    "negative index": (lambda x, i: x[-i - 1], lambda n: (torch.randn(n, 6), torch.randint(0, n, (n,)))),
    "scatters": (
        lambda x, i: (
            torch.zeros_like(x).index_add(0, i, x),
            torch.zeros(7, 6, device=x.device).index_add(0, i % 7, x),
            x.index_put((i[:4],), x[:4] * 2, accumulate=True),
            x.scatter_add(0, i[:, None].expand(-1, 6), x),
        ),
        lambda n: (torch.randn(n, 6), torch.randperm(n)),
    ),
    "pools": (
        lambda x: (F.avg_pool1d(x.transpose(1, 2), 3, 2), F.max_pool2d(x, (3, 1), 2)),
        batch,
    ),
    "convolutions": (
        lambda x, w: (F.conv1d(x.transpose(1, 2), w), F.conv1d(x.transpose(1, 2), w, stride=2, padding=2)),
        lambda n: (torch.randn(3, n, 6), torch.randn(4, 6, 3)),
    ),
    "normalized": (
        lambda x: (F.layer_norm(x, (6,)), F.batch_norm(x.transpose(1, 2), None, None, training=True)),
        batch,
    ),
    "groups": (lambda x: F.group_norm(x.transpose(1, 2), 3) * x.transpose(1, 2), batch),
    "losses": (
        lambda x, y: (F.cross_entropy(x, y), F.mse_loss(x, x * 2), F.nll_loss(x, y, reduction="sum")),
        lambda n: (torch.randn(n, 6), torch.randint(0, 6, (n,))),
    ),
    "ignored": (
        lambda x, y: F.cross_entropy(x, y, ignore_index=2),
        lambda n: (torch.randn(n, 6), torch.randint(0, 6, (n,))),
    ),
    "attention": (
        lambda x: (
            F.scaled_dot_product_attention(x, x, x),
            F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        ),
        batch,
    ),
    "integers": (
        lambda x: (x // 2, x % 3, x.sum(0), x.cumsum(0), x.bitwise_and(3)),
        lambda n: (torch.arange(n * 2).view(n, 2),),
    ),
    "complex": (lambda x: (torch.view_as_complex(x.view(-1, 3, 2)).abs().sum(0),), rows),
    "a length that varies in two": (lambda x, y: x @ y.t(), lambda n: (torch.randn(n, 6), torch.randn(n + 5, 6))),
    "half": (lambda x: (x.sum(0), x.softmax(0), x.t() @ x), lambda n: (torch.randn(n, 6).bfloat16().float(),)),
    "searches": (
        lambda x, y: (torch.searchsorted(x, y), torch.bucketize(y, x)),
        lambda n: (torch.randn(n).sort()[0], torch.randn(n)),
    ),
    "resized": (lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2), batch),
    "chunks": (lambda x: x.chunk(2), rows),
    "windows": (lambda x: x.unfold(0, 4, 2), rows),
    "histogram": (lambda x: torch.histc(x, 5, -2, 2), rows),
    "lstm-like": (lambda x: x.cumsum(1).flip(1).cumsum(1).transpose(0, 1), batch),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), rows),
    "linalg": (lambda x: (torch.linalg.inv(x.t() @ x), torch.linalg.cholesky(x.t() @ x)), rows),
    "distances": (lambda x: F.pdist(x), rows),
    "fft": (lambda x: torch.fft.rfft(x, dim=0).abs(), rows),
}
# Where some sizes compile by themselves: why.
EXACT = {
    "reflects": "a table of places, an entry for each",
    "fft": "no rule: the whole result depends on the length",
    "pools": "what a stride leaves over takes an operation more at some sizes",
    "slices": "the gradient of a slice is another graph where the stride leaves nothing over",
    "a length that varies in two": "two buckets of the longer one",
    "reshapes": "two of the first samples' numbers are equal by chance: one more program",
    "linalg": "the test's own copies",
}


def shared(name: str, programs: int, functions: int = 1) -> None:
    if name not in EXACT:
        assert programs <= 2 * functions, "one for the first size and one for the bucket"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function, make = FUNCTIONS[name]
    compiled = torch.compile(function, backend="tpu", dynamic=True)
    before = compiled_programs()
    for n in SIZES:
        inputs = make(n)
        close(compiled(*on_tpu(inputs)), function(*inputs))
    shared(name, compiled_programs() - before)


@pytest.mark.parametrize(
    "name",
    "sums norms softmax products slices pads cats joined gathers scatters losses attention numbers".split(),
)
def test_gradients(name: str) -> None:
    function, make = FUNCTIONS[name]

    def total(*inputs: torch.Tensor) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves(function(*inputs))
        return sum(t.square().sum() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())

    compiled = torch.compile(total, backend="tpu", dynamic=True)
    before = compiled_programs()
    for n in SIZES:
        inputs = [t.requires_grad_() if t.is_floating_point() else t for t in make(n)]
        given = on_tpu(inputs)
        want, got = total(*inputs), compiled(*given)
        close(got, want)
        want.backward()
        got.backward()
        for a, b in zip(given, inputs, strict=True):
            if b.requires_grad:
                largest = b.grad.abs().max()
                close(a.grad.cpu() / largest, b.grad / largest)
    if name != "attention":  # of three dimensions: its saved logsumexp has another rank than PyTorch's fake one
        shared(name, compiled_programs() - before - 2, 2)  # the gradient that backward() begins with, and a copy


class Decoder(nn.Module):
    """A block of causal attention between an embedding and the logits."""

    def __init__(self, width: int = 16, heads: int = 2, words: int = 29):
        super().__init__()
        self.heads = heads
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(256, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, words)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.embed(ids) + self.place(torch.arange(length, device=ids.device))
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return self.head(x + self.mlp(self.norms[1](x)))


def models() -> tuple[nn.Module, nn.Module]:
    model = Decoder()
    return model, copy.deepcopy(model).tpu()


def test_two_hundred_lengths_through_a_decoder() -> None:
    model, on_device = models()
    compiled = torch.compile(on_device, backend="tpu", dynamic=True)
    before = compiled_programs()
    for n in torch.randperm(200).add(2).tolist():
        ids = torch.randint(0, 29, (2, n))
        with torch.no_grad():
            close(compiled(ids.tpu()), model(ids))
    assert compiled_programs() - before <= 12


def test_training_on_many_lengths() -> None:
    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    model, on_device = models()
    compiled = torch.compile(loss_of, backend="tpu", dynamic=True)
    before = compiled_programs()
    for n in torch.randperm(200).add(3).tolist()[:60]:
        ids = torch.randint(0, 29, (2, n))
        want, got = loss_of(model, ids), compiled(on_device, ids.tpu())
        close(got, want)
        for loss, of in ((want, model), (got, on_device)):
            of.zero_grad()
            loss.backward()
        for a, b in zip(on_device.parameters(), model.parameters(), strict=True):
            close(a.grad, b.grad)
    assert compiled_programs() - before <= 12


def test_bounds_and_buckets_of_the_user() -> None:
    compiled = torch.compile(lambda x: x.softmax(0), backend="tpu")
    before = compiled_programs()
    for n in (20, 70, 99, 100):  # one as it is, one bucket, which ends at the bound
        x = torch.randn(n, 4)
        given = x.tpu()
        torch._dynamo.mark_dynamic(given, 0, min=2, max=100)
        close(compiled(given), x.softmax(0))
    assert compiled_programs() - before == 2
    for options, programs in (({"size_buckets": []}, 4), ({"exact_sizes": 4}, 4), ({"size_buckets": [300]}, 2)):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x.log_softmax(0), backend="tpu", dynamic=True, options=options)
        before = compiled_programs()
        for n in (120, 170, 199, 200):
            x = torch.randn(n, 3)
            close(compiled(x.tpu()), x.log_softmax(0))
        assert compiled_programs() - before <= programs
    with pytest.raises(Exception, match="size_buckets"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"size_buckets": [0]})(torch.ones(3).tpu())


def test_inputs_passed_on_and_in_other_orders() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.t(), x[1:], x.sin().t(), x * 2

    compiled = torch.compile(run, backend="tpu", dynamic=True)
    for n in (20, 21, 22, 40, 21):
        x = torch.randn(4, n)
        got, want = compiled(x.tpu().t()), run(x.t())
        close(got, want)
        assert [t.stride() for t in got] == [t.stride() for t in want]
        wide = torch.randn(n, 9)
        close(compiled(wide.tpu()[:, 2:6]), run(wide[:, 2:6]))


def test_inputs_written_to() -> None:
    def run(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum(0))
        return x.cumsum(0)

    def grown(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sum()

    compiled, compiled_grown = (torch.compile(f, backend="tpu", dynamic=True) for f in (run, grown))
    total = torch.zeros(4)
    given = total.tpu()
    for n in (20, 21, 22, 40, 21, 32):
        x = torch.randn(n, 4)
        on_device = x.tpu()
        close(compiled(on_device, given), run(x, total))
        close(given, total)
        close(compiled_grown(on_device), grown(x))
        close(on_device, x)


def test_random_numbers_are_those_of_the_true_size() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu", dynamic=True)
    for n in (20, 21, 22):
        x = torch.ones(n, 4).tpu()
        torch.manual_seed(1)
        got = compiled(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, F.dropout(x, 0.5))


def test_an_index_beyond_the_true_size_raises() -> None:
    compiled = torch.compile(lambda x, i: x[i], backend="tpu", dynamic=True)
    for n in (20, 21, 22):
        x = torch.randn(n, 4)
        close(compiled(x.tpu(), torch.tensor([1, n - 1]).tpu()), x[[1, n - 1]])
    with pytest.raises(IndexError, match="25"):
        compiled(torch.randn(22, 4).tpu(), torch.tensor([1, 25]).tpu())
