# SPDX-License-Identifier: Apache-2.0
"""Pointwise operators: what PyTorch's operator samples leave out. The CPU is the judge."""

import math

import conformance
import pytest
import torch

import torch_tpu  # noqa: F401

NAN, INF = math.nan, math.inf
EDGES = [NAN, -INF, INF, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0, 7.0]
F = torch.nn.functional


def both(f, *tensors):
    """f on the CPU and on tpu, equal in dtype and value."""
    want = f(*tensors)
    got = f(*(t.to("tpu") for t in tensors))
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=2e-5, atol=1e-6)
    return want


UNARY = [
    torch.abs,
    torch.sign,
    torch.neg,
    torch.floor,
    torch.ceil,
    torch.trunc,
    torch.round,
    torch.frac,
    torch.exp,
    torch.log,
    torch.log1p,
    torch.sqrt,
    torch.rsqrt,
    torch.reciprocal,
    torch.sigmoid,
    torch.tanh,
    torch.isnan,
    torch.isinf,
    torch.isposinf,
    torch.isneginf,
    torch.isfinite,
    torch.signbit,
    torch.nan_to_num,
    torch.angle,
    torch.sinc,
    torch.exp2,
    torch.expm1,
    torch.relu,
    F.silu,
    F.mish,
    F.softplus,
    F.hardswish,
    F.softshrink,
    F.hardshrink,
    F.hardsigmoid,
    F.hardtanh,
    F.elu,
    F.logsigmoid,
    F.relu6,
    F.leaky_relu,
    torch.logit,
    torch.erf,
]


@pytest.mark.parametrize("f", UNARY, ids=lambda f: f.__name__)
def test_unary_at_the_edges(f):
    both(f, torch.tensor(EDGES))


BINARY = [
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.remainder,
    torch.fmod,
    torch.pow,
    torch.atan2,
    torch.copysign,
    torch.hypot,
    torch.xlogy,
    torch.logaddexp,
    torch.logaddexp2,
    torch.heaviside,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.ge,
    torch.logical_and,
    torch.logical_xor,
    torch.clamp_min,
    torch.nextafter,
    torch.floor_divide,
]


@pytest.mark.parametrize("f", BINARY, ids=lambda f: f.__name__)
def test_binary_at_the_edges(f):
    a = torch.tensor(EDGES)
    both(f, a[:, None].contiguous(), a[None].contiguous())


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_at_the_edges(mode):
    a = torch.tensor(EDGES)
    both(lambda x, y: torch.div(x, y, rounding_mode=mode), a[:, None].contiguous(), a[None].contiguous())


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype):
    a = torch.tensor([-128, -47, -3, -1, 0, 1, 2, 100, 127]).to(dtype)
    b = torch.tensor([3, 47, -2, -1, 5, 7, 2, -9, 127]).to(dtype)
    for f in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        torch.pow,
        torch.gcd,
        torch.lcm,
        torch.bitwise_xor,
        torch.maximum,
    ):
        both(f, a, b)
    shifts = torch.tensor([0, 1, 7, 8, 31, 63, 64, 100, 2]).to(dtype)
    both(torch.bitwise_left_shift, a, shifts)
    both(torch.bitwise_right_shift, a, shifts)
    both(lambda x: x + 1, a), both(lambda x: x * 0.5, a), both(lambda x: x**2, a), both(lambda x: 3 - x, a)


def test_int64_is_exact():
    big = torch.tensor([2**53 + 1, -(2**53) - 1, 2**62 + 3])
    both(lambda x: x // 7, big), both(lambda x: x % 1000, big), both(lambda x: x * 3, big), both(lambda x: x**3, big)


PROMOTIONS = [
    (torch.int32, torch.int64),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int16),
    (torch.int64, torch.float16),
    (torch.bfloat16, torch.float16),
    (torch.float32, torch.float64),
    (torch.float64, torch.complex64),
]


@pytest.mark.parametrize("a,b", PROMOTIONS, ids=str)
@pytest.mark.parametrize("dims", [(1, 1), (1, 0), (0, 1)], ids=str)
def test_promotion(a, b, dims):
    x = torch.ones((2,) * dims[0], dtype=a)
    y = torch.ones((2,) * dims[1], dtype=b)
    both(torch.add, x, y)
    both(torch.mul, x, y)
    both(torch.eq, x, y)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("number", [True, 2, 0.1, 1j], ids=str)
def test_numbers_yield_to_tensors(dtype, number):
    for dims in ((3,), ()):
        x = torch.ones(dims, dtype=dtype)
        both(lambda t: t + number, x), both(lambda t: t * number, x), both(lambda t: t == number, x)


def test_a_number_keeps_its_precision_beside_bfloat16():
    x = torch.arange(1, 100).to(torch.bfloat16)
    assert torch.equal((x.to("tpu") * 0.1).cpu(), x * 0.1)
    assert torch.equal((x.to("tpu") == 0.1).cpu(), x == 0.1)


def test_cpu_scalar_tensors_take_part():
    x = torch.arange(4.0)
    torch.testing.assert_close((x.to("tpu") * torch.tensor(2.5)).cpu(), x * 2.5)
    torch.testing.assert_close(
        torch.where(x.to("tpu") > 1, x.to("tpu"), torch.tensor(9.0)).cpu(), torch.where(x > 1, x, 9.0)
    )
    with pytest.raises(RuntimeError):
        x.to("tpu") + x


def test_the_same_tensor_twice_is_another_plan():
    x, y = torch.randn(7), torch.randn(7)
    tx, ty = x.to("tpu"), y.to("tpu")
    torch.testing.assert_close((tx * tx).cpu(), x * x)
    torch.testing.assert_close((tx * ty).cpu(), x * y)
    torch.testing.assert_close(torch.addcmul(tx, ty, ty).cpu(), torch.addcmul(x, y, y))
    torch.testing.assert_close(torch.addcmul(tx, tx, ty).cpu(), torch.addcmul(x, x, y))


def test_empty_and_rank_0():
    for shape in ((0,), (2, 0, 3), ()):
        x = torch.ones(shape)
        both(torch.exp, x), both(torch.add, x, x), both(lambda t: t.clamp(0, 1), x), both(torch.gcd, x.int(), x.int())


def test_in_place_on_views():
    def f(x):
        x.t()[1:].mul_(3)
        x[:, ::2].add_(1).sqrt_()
        x[0].fill_(7)
        x[1:, 1].zero_()
        x.masked_fill_(x > 6.5, -1)
        x[2].clamp_(max=2)
        return x

    torch.testing.assert_close(f(torch.arange(12.0).view(3, 4).to("tpu")).cpu(), f(torch.arange(12.0).view(3, 4)))


def test_out_takes_on_the_size_and_keeps_the_dtype():
    a = torch.arange(4).to("tpu")
    out = torch.empty(0, dtype=torch.float64, device="tpu")
    assert torch.add(a, a, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.arange(4).double() * 2)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.mul(a, 1.5, out=torch.empty(4, dtype=torch.int64, device="tpu"))


def test_clamp():
    x = torch.tensor(EDGES)
    for low, high in ((0, 2), (None, 1.5), (-1, None), (3, 1), (NAN, 1)):
        both(lambda t: t.clamp(low, high), x)
    both(torch.clamp, x, torch.full((13,), -1.0), torch.full((13,), NAN))
    both(lambda t: t.clamp(0.5, 2), torch.arange(4))


def test_powers_of_integers():
    x = torch.tensor([-3, -2, -1, 0, 1, 2])
    both(lambda t: t ** torch.full_like(t, -3), x), both(lambda t: t**5, x), both(lambda t: 2.0**t, x)
    for n in (0, 1, 0.5, -0.5, 2, -1, -2, 3, 2.7):
        both(lambda t: t**n, torch.tensor(EDGES))


def raised(f, device):
    try:
        f(device)
    except Exception as e:
        return type(e)
    return None


BAD = {
    "shapes": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "bool minus": lambda d: torch.ones(2, dtype=torch.bool, device=d) - torch.ones(2, dtype=torch.bool, device=d),
    "negative power": lambda d: torch.arange(3, device=d) ** -1,
    "int in place": lambda d: torch.arange(3, device=d).add_(1.5),
    "shape in place": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "bits of floats": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "order of complex": lambda d: torch.ones(2, dtype=torch.complex64, device=d) < 1,
    "gelu form": lambda d: F.gelu(torch.ones(2, device=d), approximate="no"),
    "lambda": lambda d: F.softshrink(torch.ones(2, device=d), -1),
    "overflow of fill": lambda d: torch.ones(2, dtype=torch.int8, device=d).fill_(300),
    "overflow of masked_fill": lambda d: torch.ones(2, dtype=torch.uint8, device=d).masked_fill_(
        torch.ones(2, dtype=torch.bool, device=d), 256
    ),
    "mask dtype": lambda d: torch.ones(2, device=d).masked_fill(torch.ones(2, device=d), 0),
    "division by zero": lambda d: torch.arange(3, device=d) // 0,
    "remainder by zero": lambda d: torch.arange(3, device=d) % torch.arange(3, device=d),
    "polygamma": lambda d: torch.polygamma(-1, torch.ones(2, device=d)),
    "glu": lambda d: F.glu(torch.ones(3, device=d)),
    "remainder of bools": lambda d: torch.ones(2, dtype=torch.bool, device=d) % True,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_at_the_call(name):
    want = raised(BAD[name], "cpu")
    assert want is not None and raised(BAD[name], "tpu") is want


def test_conjugate_and_negative_views():
    x = torch.complex(torch.randn(3), torch.randn(3))
    both(lambda t: t.conj() + 1, x), both(lambda t: t.conj().imag, x), both(lambda t: t.conj().clone(), x)
    both(lambda t: torch._neg_view(t.real) + 1, x), both(torch.polar, x.real.contiguous(), x.imag.contiguous())


def test_frexp():
    x = torch.tensor(EDGES + [1e-40, 3e38, -1e-45])
    mantissa, exponent = torch.frexp(x.to("tpu"))
    finite = x.isfinite()  # the exponent of the others is undefined
    assert torch.equal(torch.ldexp(mantissa.cpu().double(), exponent.cpu())[finite], x.double()[finite])
    assert torch.equal(exponent.cpu()[finite], torch.frexp(x).exponent[finite])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["DEFER_NEVER", "DEFER_AND_FUSE", "compiled"])
def test_a_mask_keeps_nan(dtype, mode):
    """XLA has a rule that makes a product with a mask a choice, which would give 0."""
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([nan, inf, -inf, -1.0, nan, 2.0], dtype=dtype)
    mask = torch.tensor([False, False, False, False, True, True])

    def products(x, mask):
        return x * mask, mask.to(x.dtype) * x, x * (x > 0), x.mul(mask.unsqueeze(1)).sum(0)

    run = torch.compile(products, backend="tpu") if mode == "compiled" else products
    chosen = torch.tpu.EagerMode[mode] if mode != "compiled" else torch.tpu.eager_mode
    with conformance.eager_mode(chosen):
        conformance.close(run(x.to("tpu"), mask.to("tpu")), products(x, mask))
