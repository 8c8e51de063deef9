# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of every kind, length and normalization."""

import pytest
import torch

import torch_tpu  # noqa: F401


def check(f, x, tol=None):
    tol = tol or (1e-10 if x.dtype in (torch.float64, torch.complex128) else 2e-4)
    want = f(x)
    got = f(x.to("tpu"))
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), want, rtol=tol, atol=tol)


@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 30])
def test_one_dimension(n, norm):
    x = torch.randn(3, n)
    c = torch.randn(3, n, dtype=torch.complex64)
    check(lambda t: torch.fft.fft(t, norm=norm), x)
    check(lambda t: torch.fft.fft(t, norm=norm), c)
    check(lambda t: torch.fft.ifft(t, norm=norm), c)
    check(lambda t: torch.fft.rfft(t, norm=norm), x)
    check(lambda t: torch.fft.irfft(torch.fft.rfft(t), n=n, norm=norm), x)
    check(lambda t: torch.fft.hfft(t, norm=norm), torch.randn(3, n + 1, dtype=torch.complex64))
    check(lambda t: torch.fft.ihfft(t, norm=norm), x)


@pytest.mark.parametrize("dim", [(0,), (0, 2), (2, 0, 1), (0, 1, 2, 3), (-1, -4)])
def test_dimensions(dim):
    x = torch.randn(3, 4, 5, 6)
    c = torch.randn(3, 4, 5, 6, dtype=torch.complex64)
    check(lambda t: torch.fft.fftn(t, dim=dim), c)
    check(lambda t: torch.fft.ifftn(t, dim=dim), c)
    check(lambda t: torch.fft.rfftn(t, dim=dim), x)
    check(lambda t: torch.fft.irfftn(t, dim=dim), c)
    check(lambda t: torch.fft.fftn(t, dim=dim), x)


def test_float64_sizes_and_out():
    check(lambda t: torch.fft.rfft2(t, s=(5, 9)), torch.randn(4, 6, dtype=torch.float64))
    out = torch.empty(0, dtype=torch.complex64, device="tpu")
    x = torch.randn(4, 6)
    torch.fft.fft(x.to("tpu"), out=out)
    torch.testing.assert_close(out.cpu(), torch.fft.fft(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError):
        torch.fft.fft(torch.zeros(3, 0, device="tpu"))


def test_gradients():
    x = torch.randn(3, 8)
    out = {}
    for d in ("cpu", "tpu"):
        t = x.to(d).requires_grad_()
        y = torch.fft.irfft(torch.fft.rfft(t) * 2, n=8).pow(2).sum() + torch.fft.fft2(t).abs().sum()
        out[d] = torch.autograd.grad(y, t)[0].cpu()
    torch.testing.assert_close(out["tpu"], out["cpu"], rtol=1e-4, atol=1e-4)


def test_stft():
    x = torch.randn(2, 64)
    w = torch.hann_window(16)
    check(lambda t: torch.stft(t, 16, 4, window=w.to(t.device), return_complex=True), x)
    check(
        lambda t: torch.istft(
            torch.stft(t, 16, 4, window=w.to(t.device), return_complex=True), 16, 4, window=w.to(t.device)
        ),
        x,
    )
