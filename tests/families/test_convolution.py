# SPDX-License-Identifier: Apache-2.0
"""Convolution, pooling, normalization, interpolation and padding where OpInfo does not look."""

import pytest
import torch
from torch.nn import functional as F

import torch_tpu  # noqa: F401

NAN, INF = float("nan"), float("inf")


def both(f, *tensors, rtol=1e-4, atol=1e-4):
    """f on the CPU and on tpu: results and gradients agree."""
    results = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().clone().to(device).requires_grad_(t.is_floating_point()) for t in tensors]
        out = f(*leaves)
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        grads = []
        if any(o.requires_grad for o in outs):
            torch.autograd.backward(
                [o for o in outs if o.requires_grad], [o.detach().clone() for o in outs if o.requires_grad]
            )
            grads = [t.grad for t in leaves if t.grad is not None]
        results.append([t.detach().cpu() for t in outs + grads])
    torch.testing.assert_close(results[1], results[0], rtol=rtol, atol=atol, equal_nan=True)


def raises_alike(f):
    with pytest.raises(Exception) as on_cpu:
        f("cpu")
    with pytest.raises(type(on_cpu.value)):
        f("tpu")


@pytest.mark.parametrize(
    "n,stride,padding,dilation,groups",
    [(1, 2, 1, 2, 1), (2, 1, 0, 1, 4), (2, (2, 3), (1, 2), (2, 1), 2), (3, 2, 1, 1, 1)],
)
def test_convolution_geometry(n, stride, padding, dilation, groups):
    conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    x, w, b = torch.randn(2, 4, *[7, 9, 8][:n]), torch.randn(8, 4 // groups, *[3, 2, 3][:n]), torch.randn(8)
    both(lambda *t: conv(*t, stride, padding, dilation, groups), x, w, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(groups):
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 2), torch.randn(3 * groups)
    both(lambda *t: F.conv_transpose2d(*t, (2, 3), 1, (1, 2), groups, (1, 2)), x, w, b, rtol=1e-3, atol=1e-3)


def test_convolution_of_channels_last_and_no_batch():
    x, w = torch.randn(3, 8, 8), torch.randn(4, 3, 3, 3)
    both(lambda x, w: F.conv2d(x, w), x, w, rtol=1e-3, atol=1e-3)
    both(lambda x, w: F.conv2d(x[None].contiguous(memory_format=torch.channels_last), w), x, w, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "x,w,options",
    [
        ((1, 3, 4, 4), (2, 4, 3, 3), {}),
        ((1, 3, 2, 2), (2, 3, 3, 3), {}),
        ((1, 4, 4, 4), (3, 2, 1, 1), {"groups": 2}),
        ((1, 3, 4, 4), (2, 3, 3, 3), {"stride": 0}),
        ((1, 3, 4, 4), (2, 3, 3, 3), {"padding": -1}),
    ],
)
def test_convolution_refuses(x, w, options):
    raises_alike(lambda d: F.conv2d(torch.zeros(x, device=d), torch.zeros(w, device=d), **options))


def test_convolution_refuses_two_dtypes():
    raises_alike(lambda d: F.conv2d(torch.zeros(1, 1, 3, 3).to(d), torch.zeros(1, 1, 1, 1).double().to(d)))


@pytest.mark.parametrize("window", [(2, 2, 0, 1, False), (3, 2, 1, 1, True), (2, 1, 1, 2, False), (3, 1, 1, 1, False)])
def test_max_pool_nan_ties_and_overlap(window):
    x = torch.tensor([[0.0, 2, 2, NAN], [2, 2, -INF, 1], [-INF, -INF, NAN, NAN], [-INF, -INF, 3, 3]])[None, None]
    got, want = (F.max_pool2d(x.to(d), *window, return_indices=True) for d in ("tpu", "cpu"))
    torch.testing.assert_close([t.cpu() for t in got], list(want), equal_nan=True)
    both(lambda t: F.max_pool2d(t, *window), torch.randn(2, 3, 9, 10))


def test_ceil_mode_is_part_of_the_plan():
    x = torch.randn(1, 1, 6, 6)
    for ceil in (False, True, False):
        both(lambda t, c=ceil: F.max_pool2d(t, 3, 2, 0, 1, c), x)
        both(lambda t, c=ceil: F.avg_pool2d(t, 3, 2, 1, c, False), x)


def test_large_windows():
    x = torch.randn(1, 2, 20, 21)
    both(lambda t: F.max_pool2d(t, 9, 1), x)
    both(lambda t: F.max_pool2d(t, (20, 21)), x)
    both(lambda t: F.avg_pool2d(t, (9, 10), (2, 1), (4, 5)), x)
    both(lambda t: F.adaptive_max_pool2d(t, 1), x)


def test_infinity_stays_in_its_window():
    x = torch.zeros(1, 1, 7, 7)
    x[0, 0, 0, 0] = INF
    for f in (
        lambda t: F.adaptive_avg_pool2d(t, 3),
        lambda t: F.interpolate(t, size=(3, 4), mode="bilinear", antialias=True),
    ):
        torch.testing.assert_close(f(x.to("tpu")).cpu(), f(x), equal_nan=True)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_running_statistics(momentum):
    states = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        bn = torch.nn.BatchNorm2d(3, momentum=momentum).to(device)
        for _ in range(3):
            bn(torch.randn(4, 3, 5, 5).to(device))
        y = bn.eval()(torch.ones(4, 3, 5, 5).to(device))
        states.append([y.detach().cpu()] + [v.cpu() for v in bn.state_dict().values()])
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


def test_batch_norm_without_parameters():
    both(lambda x: F.batch_norm(x, None, None, training=True), torch.randn(4, 3, 5), atol=1e-3)
    both(
        lambda x, w: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, None),
        torch.randn(4, 3),
        torch.randn(3),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_dtypes_of_norms(dtype):
    x, w = torch.randn(2, 4, 6).to(dtype), torch.randn(6)
    for f in (
        lambda d: F.layer_norm(x.to(d), (6,), w.to(d)),
        lambda d: F.group_norm(x.to(d), 2, w[:4].to(d)),
        lambda d: F.batch_norm(x.to(d), None, None, w[:4].to(d), training=True),
    ):
        torch.testing.assert_close(f("tpu").cpu(), f("cpu"), rtol=2e-2, atol=2e-2)
    raises_alike(lambda d: F.layer_norm(x.float().to(d), (6,), w.bfloat16().to(d)))


def test_empty_batches():
    x = torch.randn(0, 3, 6, 6)
    both(lambda t, w: F.conv2d(t, w), x, torch.randn(2, 3, 3, 3))
    both(lambda t: F.pad(t, (1, 2)), x)


def test_pads():
    x = torch.randn(2, 3, 5, 6)
    both(lambda t: F.pad(t, (1, -2, -1, 3), value=2.5), x)
    both(lambda t: F.pad(t, (3, 2, 4, 1), mode="reflect"), x)
    both(lambda t: F.pad(t, (9, 2, 0, 7), mode="replicate"), x)
    both(lambda t: F.pad(t, (1, 2), value=7), torch.arange(4))
    raises_alike(lambda d: F.pad(torch.zeros(1, 2, 3).to(d), (3, 0), mode="reflect"))
    raises_alike(lambda d: F.pad(torch.zeros(2, 3).to(d), (-4, 0)))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_interpolated_in_fixed_point(mode):
    x = torch.arange(60, dtype=torch.uint8).mul(37).reshape(1, 3, 4, 5)
    for antialias in (False, True):
        f = lambda t, a=antialias: F.interpolate(t, size=(7, 3), mode=mode, antialias=a)  # noqa: E731
        torch.testing.assert_close(f(x.to("tpu")).cpu(), f(x))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode, padding):
    x, grid = torch.randn(2, 3, 5, 6), torch.randn(2, 4, 3, 2) * 1.5
    for align in (False, True):
        both(lambda a, b, c=align: F.grid_sample(a, b, mode, padding, c), x, grid, rtol=1e-3, atol=1e-3)


def test_unfold_and_back():
    both(lambda t: F.unfold(t, (3, 2), 2, 1, (2, 1)), torch.randn(2, 3, 8, 9))
    both(lambda t: F.fold(t, (6, 5), (3, 2), 1, 0, 1), torch.randn(2, 12, 16))
