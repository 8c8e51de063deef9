# SPDX-License-Identifier: Apache-2.0
"""Random numbers: their distributions, ranges, seeds, views, and the errors of the CPU."""

import math

import pytest
import torch

import torch_tpu  # noqa: F401

N = 40000


def new(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype, device="tpu")


def check_cdf(sample, cdf):
    """Kolmogorov-Smirnov at about one in a million."""
    x = sample.cpu().double().sort().values
    n = len(x)
    c = torch.as_tensor(cdf(x))
    grid = torch.arange(n, dtype=torch.float64)
    d = max(((grid + 1) / n - c).max().item(), (c - grid / n).max().item())
    assert d < 2.7 / math.sqrt(n), d


FILLS = {
    "uniform_": (lambda t: t.uniform_(-1, 3), lambda x: (x + 1) / 4),
    "normal_": (lambda t: t.normal_(1, 2), lambda x: torch.special.ndtr((x - 1) / 2)),
    "exponential_": (lambda t: t.exponential_(0.5), lambda x: 1 - torch.exp(-0.5 * x)),
    "cauchy_": (lambda t: t.cauchy_(1, 2), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    "log_normal_": (lambda t: t.log_normal_(0.5, 0.7), lambda x: torch.special.ndtr((x.log() - 0.5) / 0.7)),
}


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution(name, dtype):
    fill, cdf = FILLS[name]
    torch.manual_seed(0)
    check_cdf(fill(new(dtype)), cdf)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 7.5])
def test_gamma(alpha):
    torch.manual_seed(0)
    check_cdf(
        torch._standard_gamma(torch.full((N,), alpha, device="tpu")),
        lambda x: torch.special.gammainc(torch.tensor(alpha).double(), x),
    )


@pytest.mark.parametrize("rate", [0.5, 8.0, 25.0, 300.0])
def test_poisson(rate):
    torch.manual_seed(0)
    x = torch.poisson(torch.full((N,), rate, device="tpu")).cpu().double()
    assert abs(x.mean() - rate) < 5 * math.sqrt(rate / N)
    assert abs(x.var() / rate - 1) < 0.05
    assert (x == x.floor()).all()


@pytest.mark.parametrize("n,p", [(5, 0.3), (30, 0.9), (100, 0.5), (1000, 0.02)])
def test_binomial(n, p):
    torch.manual_seed(0)
    x = torch.binomial(torch.full((N,), float(n), device="tpu"), torch.full((N,), p, device="tpu")).cpu().double()
    assert x.min() >= 0 and x.max() <= n
    assert abs(x.mean() - n * p) < 5 * math.sqrt(n * p * (1 - p) / N)
    assert abs(x.var() / (n * p * (1 - p)) - 1) < 0.05


def test_binomial_edges():
    n = torch.tensor([5.0, 0.0, 5.0, float("nan")], device="tpu")
    p = torch.tensor([1.0, 0.5, 0.0, 0.5], device="tpu")
    assert torch.binomial(n, p).cpu()[:3].tolist() == [5, 0, 0]


def test_dirichlet():
    x = torch._sample_dirichlet(torch.full((1000, 3), 2.0, device="tpu")).cpu()
    torch.testing.assert_close(x.sum(-1), torch.ones(1000))
    assert abs(x.mean() - 1 / 3) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sample_gradients(dtype):
    g = torch.Generator().manual_seed(0)
    alpha = torch.rand(500, generator=g, dtype=dtype) * 20 + 0.05
    x = torch._standard_gamma(alpha)
    tol = dict(rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(
        torch._standard_gamma_grad(alpha.to("tpu"), x.to("tpu")).cpu(), torch._standard_gamma_grad(alpha, x), **tol
    )
    alpha = torch.rand(200, 4, generator=g, dtype=dtype) * 15 + 0.05
    x = torch._sample_dirichlet(alpha)
    total = alpha.sum(-1, keepdim=True).expand_as(alpha)
    torch.testing.assert_close(
        torch._dirichlet_grad(x.to("tpu"), alpha.to("tpu"), total.to("tpu")).cpu(),
        torch._dirichlet_grad(x, alpha, total),
        rtol=2e-2,
        atol=1e-3,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_uniform_stays_below_one(dtype):
    x = new(dtype).uniform_().cpu()
    assert x.min() >= 0 and x.max() < 1
    assert (new(dtype).exponential_().cpu() > 0).all() and new(dtype).exponential_().cpu().isfinite().all()


def test_tails_of_normal():
    x = new(n=4_000_000).normal_().cpu()
    assert 4.7 < x.abs().max() < 7 and abs((x.abs() > 3).float().mean() - 0.0026998) < 2e-4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_integers(dtype):
    x = new(dtype).random_().cpu()
    top = 1 if dtype == torch.bool else torch.iinfo(dtype).max
    assert x.min() >= 0 and x.to(torch.float64).max() > top * 0.99
    if dtype != torch.bool:
        y = new(dtype).random_(3, 7).cpu()
        assert y.unique().tolist() == [3, 4, 5, 6]
        assert abs(y.double().mean() - 4.5) < 0.05


def test_wide_integers():
    x = new(torch.int64).random_(-(2**62), 2**62).cpu().double()
    assert abs(x.mean()) < 2**62 * 0.02 and x.max() > 2**61.9 and x.min() < -(2**61.9)
    x = new(torch.int64).random_(-(2**63), None).cpu().double()
    assert x.max() > 2**62.9 and x.min() < -(2**62.9)
    assert new(torch.float32).random_().cpu().max() <= 2**24
    assert new(torch.float32).random_(-(2**40), 2**50).cpu().max() < 2**50


def test_seed_repeats():
    def draw():
        torch.manual_seed(7)
        return [
            torch.rand(5, device="tpu").cpu(),
            torch.randn(3, 3, device="tpu").cpu(),
            torch.randint(100, (4,), device="tpu").cpu(),
            torch.randperm(9, device="tpu").cpu(),
        ]

    a, b = draw(), draw()
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(torch.rand(5, device="tpu").cpu(), torch.rand(5, device="tpu").cpu())
    g = torch.Generator(device="tpu").manual_seed(7)
    assert torch.equal(torch.rand(5, device="tpu", generator=g).cpu(), a[0])


def test_draws_do_not_overlap():
    torch.manual_seed(0)
    words = torch.cat([torch.empty(n, dtype=torch.int64, device="tpu").random_().cpu() for n in (1, 3, 4, 5, 7, 1000)])
    assert words.unique().numel() == words.numel()


@pytest.mark.parametrize("n", [0, 1, 2, 257])
def test_randperm(n):
    assert torch.randperm(n, device="tpu").cpu().sort().values.tolist() == list(range(n))
    out = torch.empty(3, dtype=torch.int32, device="tpu")
    torch.randperm(n, out=out)
    assert out.shape == (n,)


def test_multinomial():
    p = torch.tensor([[0.0, 1.0, 3.0, 0.0], [1.0, 1.0, 0.0, 2.0]], device="tpu")
    x = torch.multinomial(p, 20000, replacement=True).cpu()
    for row, want in zip(x, p.cpu(), strict=True):
        torch.testing.assert_close(torch.bincount(row, minlength=4) / 20000, want / want.sum(), atol=0.02, rtol=0)
    assert torch.multinomial(p, 2).cpu().sort().values[0].tolist() == [1, 2]
    assert torch.multinomial(p[1], 1).shape == (1,)


def test_dropout():
    torch.manual_seed(0)
    x = torch.ones(N, device="tpu", requires_grad=True)
    before = torch.tpu.metrics()["launches"]
    y = torch.nn.functional.dropout(x, 0.25)
    assert torch.tpu.metrics()["launches"] - before == 1
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert abs((y.detach().cpu() == 0).float().mean() - 0.25) < 0.02
    assert set(y.detach().cpu().unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.nn.functional.dropout(x, 1.0).detach().cpu().sum() == 0


def test_rrelu():
    x = torch.linspace(-1, 1, 11, device="tpu", requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    slope = y.detach().cpu() / x.detach().cpu()
    assert ((slope[:5] >= 0.1) & (slope[:5] <= 0.3)).all()
    torch.testing.assert_close(x.grad.cpu()[:5], slope[:5])
    torch.testing.assert_close(torch.nn.functional.rrelu(x).detach().cpu(), torch.nn.functional.rrelu(x.detach().cpu()))


@pytest.mark.parametrize(
    "name", ["normal_", "uniform_", "exponential_", "bernoulli_", "random_", "log_normal_", "cauchy_", "geometric_"]
)
def test_through_views(name):
    base = torch.full((8, 6), -123.0, device="tpu")
    view = base.t()[:, ::2]
    getattr(view, name)(*([0.5] if name == "geometric_" else []))
    assert not (view.cpu() == -123).any() and (base.cpu() == -123).sum() == 24


ERRORS = {
    "uniform": lambda d: torch.empty(3, device=d).uniform_(2, 1),
    "normal": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "normal int": lambda d: torch.empty(3, dtype=torch.int64, device=d).normal_(),
    "normal std": lambda d: torch.normal(torch.zeros(3, device=d), -1.0),
    "random order": lambda d: torch.empty(3, device=d).random_(5, 2),
    "random range": lambda d: torch.empty(3, dtype=torch.int8, device=d).random_(0, 500),
    "random complex": lambda d: torch.empty(3, dtype=torch.complex64, device=d).random_(),
    "bernoulli": lambda d: torch.empty(3, device=d).bernoulli_(2.0),
    "bernoulli tensor": lambda d: torch.empty(3, device=d).bernoulli_(torch.full((3,), 2.0, device=d)),
    "bernoulli int p": lambda d: torch.bernoulli(torch.ones(3, dtype=torch.int64, device=d)),
    "exponential": lambda d: torch.empty(3, device=d).exponential_(-1),
    "geometric": lambda d: torch.empty(3, device=d).geometric_(0),
    "cauchy": lambda d: torch.empty(3, device=d).cauchy_(0, -1),
    "log_normal": lambda d: torch.empty(3, device=d).log_normal_(0, -1),
    "randperm": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "multinomial many": lambda d: torch.multinomial(torch.ones(3, device=d), 5),
    "multinomial negative": lambda d: torch.multinomial(-torch.ones(3, device=d), 1),
    "multinomial rank": lambda d: torch.multinomial(torch.ones(3, 3, 3, device=d), 1),
    "poisson": lambda d: torch.poisson(-torch.ones(3, device=d)),
    "binomial": lambda d: torch.binomial(torch.ones(3, dtype=torch.int64, device=d), torch.ones(3, device=d)),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(3, device=d), 1.5),
    "randint": lambda d: torch.randint(5, 5, (3,), device=d),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    with pytest.raises(Exception) as want:
        ERRORS[name]("cpu")
    for _ in range(2):  # also where a plan is known
        with pytest.raises(want.type) as got:
            ERRORS[name]("tpu")
        assert str(got.value).splitlines()[0][:40] == str(want.value).splitlines()[0][:40]


def test_values_are_checked_at_every_call():
    t = torch.empty(3, device="tpu")
    t.bernoulli_(0.5)
    with pytest.raises(RuntimeError, match="bernoulli_ expects p"):
        t.bernoulli_(1.5)
