# SPDX-License-Identifier: Apache-2.0
"""Matrix products, attention and linear algebra: what OpInfo does not cover."""

import pytest
import torch

import torch_tpu  # noqa: F401

L = torch.linalg
F = torch.nn.functional


def both(f, *tensors):
    """f on the CPU and on the device; checks that they agree, and gives the device's result."""
    want = f(*tensors)
    got = f(*(t.to("tpu") for t in tensors))
    for a, b in zip(
        got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return got


def error_of(f, device):
    try:
        f(device)
    except Exception as e:
        # The meta kernels of products word their errors in their own way.
        return type(e), str(e) if isinstance(e, L.LinAlgError) else None
    return None


def test_same_tensor_twice():
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    both(torch.mm, a, b)
    both(lambda x: x @ x, a)
    both(torch.mm, b, a)  # must not find the program of x @ x


def test_beta_zero_ignores_self():
    a, nan = torch.randn(2, 3, 3), torch.full((3, 3), float("nan"))
    both(lambda s, x: torch.addmm(s, x[0], x[1], beta=0), nan, a)
    both(lambda s, x: torch.addmm(x[0], s, x[1], alpha=0), nan, a)
    both(lambda s, x: torch.baddbmm(s, x, x, beta=0), nan, a)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int16])
def test_integers_wrap(dtype):
    a = torch.randint(0, 100, (5, 70)).to(dtype)
    both(lambda x: x @ x.t(), a)


def test_int64_is_exact():
    a = torch.randint(-(2**40), 2**40, (4, 4))
    both(lambda x: x @ x, a)


def test_empty_products():
    both(torch.mm, torch.randn(3, 0), torch.randn(0, 2))
    both(torch.bmm, torch.randn(0, 3, 2), torch.randn(0, 2, 4))


@pytest.mark.parametrize(
    "f",
    [
        lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d).double(),
        lambda d: torch.ones(2, 2, device=d, dtype=torch.bool) @ torch.ones(2, 2, device=d, dtype=torch.bool),
        lambda d: torch.mm(torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)),
        lambda d: torch.dot(torch.ones(2, device=d), torch.ones(2, device=d).double()),
        lambda d: L.inv(torch.zeros(2, 2, device=d)),
        lambda d: L.inv_ex(torch.zeros(3, 2, 2, device=d), check_errors=True),
        lambda d: L.cholesky(-torch.eye(3, device=d)),
        lambda d: torch.cholesky(torch.diag(torch.tensor([1.0, -1, 2], device=d))),
        lambda d: L.solve(torch.zeros(2, 2, device=d), torch.ones(2, device=d)),
        lambda d: L.lu_factor(torch.eye(2, device=d), pivot=False),
        lambda d: L.svd(torch.full((2, 2), float("nan"), device=d)),
    ],
)
def test_errors(f):
    want = error_of(f, "cpu")
    assert want is not None and error_of(f, "tpu") == want


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (2, 3, 5), (0, 3), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_svd(shape, dtype):
    a = torch.randn(shape, dtype=dtype)
    for full in (False, True):
        u, s, vh = (t.cpu() for t in L.svd(a.to("tpu"), full))
        k = s.shape[-1]
        torch.testing.assert_close(s, L.svdvals(a), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((u[..., :k] * s[..., None, :].to(dtype)) @ vh[..., :k, :], a, rtol=1e-5, atol=1e-5)
        for q in (u, vh.mH):
            one = torch.eye(q.shape[-1], dtype=dtype)
            torch.testing.assert_close(q.mH @ q, one.expand((q.mH @ q).shape), rtol=1e-5, atol=1e-5)


def test_svd_of_low_rank():
    a = torch.randn(8, 2) @ torch.randn(2, 6)
    u, s, vh = (t.cpu() for t in L.svd(a.to("tpu")))
    torch.testing.assert_close(u.T @ u, torch.eye(8), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((u[:, :6] * s) @ vh, a, rtol=1e-5, atol=1e-5)
    assert L.matrix_rank(a.to("tpu")).item() == 2


def test_eigh():
    a = torch.randn(2, 5, 5)
    h = a + a.mT
    w, v = (t.cpu() for t in L.eigh(h.to("tpu")))
    torch.testing.assert_close(w, L.eigvalsh(h), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((v * w[..., None, :]) @ v.mT, h, rtol=1e-5, atol=1e-5)


def test_factorizations_agree():
    a = torch.randn(2, 5, 3)
    both(lambda x: tuple(L.qr(x, "complete")), a)
    both(lambda x: tuple(L.lu_factor(x)), a)
    both(lambda x: tuple(L.lu(x.mT)), a)


def test_lu_of_singular():
    a = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 1, 1]])
    both(lambda x: tuple(L.lu_factor_ex(x)), a)
    both(lambda x: L.cholesky_ex(x @ x.T - 2 * torch.eye(3, device=x.device)).info, a)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_lstsq(driver):
    both(lambda x, y: tuple(L.lstsq(x, y, driver=driver)), torch.randn(6, 3), torch.randn(6, 2))


def attend(device, q, k, v, w, mask=None, **options):
    q, k, v = (t.to(device).requires_grad_() for t in (q, k, v))
    mask = mask.to(device) if mask is not None else None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), w.to(device)))


HALF = torch.arange(30).reshape(5, 6) % 3 != 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"mask": HALF},
        {"mask": HALF & (torch.arange(5) != 2)[:, None]},
        {"mask": torch.where(HALF, 0.5, -float("inf"))},
    ],
)
def test_attention(options):
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    for got, want in zip(attend("tpu", q, k, v, q, **options), attend("cpu", q, k, v, q, **options), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_attention_with_shared_heads_and_layout():
    q, k, v = torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    got, want = attend("tpu", q, k, v, q, enable_gqa=True), attend("cpu", q, k, v, q, enable_gqa=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    assert got[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("length", [300, 2100])
def test_attention_in_causal_blocks(length):
    q, k, v = torch.randn(1, 2, length, 8), torch.randn(1, 2, length - 20, 8), torch.randn(1, 2, length - 20, 8)
    got, want = attend("tpu", q, k, v, q, is_causal=True), attend("cpu", q, k, v, q, is_causal=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


def test_attention_dropout():
    q, k = torch.randn(2, 3, 64, 16, device="tpu"), torch.randn(2, 3, 64, 16, device="tpu")
    v = torch.ones(2, 3, 64, 16, device="tpu", requires_grad=True)
    torch.manual_seed(3)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    again = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert abs(out.mean().item() - 1) < 0.02 and not torch.equal(out, again)
    w = torch.randn_like(out)
    (dv,) = torch.autograd.grad((out * w).sum(), v)  # linear in v: the same mask both ways
    torch.testing.assert_close((out * w).sum().cpu(), (v * dv).sum().cpu(), rtol=1e-3, atol=1e-3)
