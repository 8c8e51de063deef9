# SPDX-License-Identifier: Apache-2.0
"""The operators of reference_operators.txt run on the device, those that PyTorch writes anew for each backend too."""

from pathlib import Path

import conformance
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_tpu import _C
from torch_tpu.__main__ import _served

# Why an operator of the list has no kernel here.
NOT_SERVED = {
    "_nested_from_padded_tensor": "for nested tensors of the strided layout, which are not there",
    "_nested_get_jagged_dummy": "a method of the class NestedTensor; plain tensors have none",
    "_nested_get_lengths": "as above",
    "_nested_get_max_seqlen": "as above",
    "_nested_get_min_seqlen": "as above",
    "_nested_get_offsets": "as above",
    "_nested_get_ragged_idx": "as above",
    "_nested_get_values": "as above",
    "_nested_view_from_jagged": "as above",
    "native_norm": "for sparse tensors; they have norm",
}


def test_reference_operators_are_native() -> None:
    names = [n for n in (Path(__file__).parent / "reference_operators.txt").read_text().splitlines() if n[0] != "#"]
    known = set(torch._C._dispatch_get_all_op_names())
    lowerings = {entry[0]: entry for entry in _C.registered()}
    on_cpu = [n for n in names if n in known and _served(n, lowerings) == "CPU fallback"]
    assert {n.removeprefix("aten::").split(".")[0] for n in on_cpu} == set(NOT_SERVED)
    assert [n for n in names if n not in known] == ["aten::ctc_loss"]  # TorchScript's name for two overloads


aten = torch.ops.aten


def same(f, *arguments, **tolerances) -> None:
    moved = conformance.on_tpu(arguments)
    want = conformance.outcome(lambda: f(*arguments))
    before = dict(torch.tpu.fallback_stats())
    got = conformance.outcome(lambda: f(*moved))
    assert got[1] is want[1], f"{got[1:]} instead of {want[1:]}"
    if want[1] is None:
        conformance.close(got[0], want[0], **tolerances)
        assert dict(torch.tpu.fallback_stats()) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16])
def test_add_relu(dtype: torch.dtype) -> None:
    x, y = (torch.randn(4, 8) * 5).to(dtype), (torch.randn(8) * 5).to(dtype)
    same(lambda x, y: aten._add_relu.Tensor(x, y, alpha=2), x, y)
    same(lambda x: aten._add_relu.Scalar(x, 3, 2), x)
    same(lambda x, y: (aten._add_relu_.Tensor(x, y), x)[1], x.clone(), y)
    same(lambda x, y: aten._add_relu.out(x, y, out=torch.empty(0, dtype=dtype, device=x.device)), x, y)


def test_adaptive_pooling_out() -> None:
    x = torch.randn(2, 3, 8, 9)
    out = lambda x: torch.empty(0, device=x.device)  # noqa: E731
    same(lambda x: aten.adaptive_avg_pool2d.out(x, [2, 3], out=out(x)), x)
    same(lambda x: aten.adaptive_avg_pool3d.out(x, [2, 2, 3], out=out(x)), x)
    same(lambda x: aten.adaptive_avg_pool3d_backward.grad_input(x[:, :2, :2, :3], x, grad_input=out(x)), x)


@pytest.mark.parametrize("values", [[True], [False], [0.0], [2], [], [1, 2]])
def test_assert_async(values: list) -> None:
    same(aten._assert_async, torch.tensor(values))
    same(lambda x: aten._assert_async.msg(x, "no good"), torch.tensor(values))


def test_linear_backward() -> None:
    x, w, dy = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True), torch.randn(2, 3, 5)
    b = torch.zeros(5, requires_grad=True)
    want = torch.autograd.grad(F.linear(x, w, b), (x, w, b), dy)
    moved = conformance.on_tpu((x.detach(), dy, w.detach()))
    conformance.close(aten.linear_backward(*moved, [True, True, True]), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_another_dtype(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 3, 4, dtype=dtype), torch.randn(2, 4, 5, dtype=dtype)
    (ta, tb), want = conformance.on_tpu((a, b)), a.float() @ b.float()
    conformance.close(torch.mm(ta[0], tb[0], out_dtype=torch.float32), want[0])
    conformance.close(torch.bmm(ta, tb, out_dtype=torch.float32), want)
    with pytest.raises(RuntimeError, match="out_dtype"):
        torch.mm(ta[0], tb[0], out_dtype=torch.float64)


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_jagged_and_padded(length: int, shape: tuple[int, ...]) -> None:
    offsets = torch.tensor([0, 2, 2, 5])
    values = torch.randn(5, *shape)
    same(lambda v, o: aten._jagged_to_padded_dense_forward(v, [o], [length], 7.0), values, offsets)
    if length == 4:
        padded = torch.randn(3, length, *(shape or (1,)))
        same(lambda p, o: aten._padded_dense_to_jagged_forward(p, [o], 5), padded, offsets)
        same(lambda p, o: aten._padded_dense_to_jagged_forward(p, [o]), padded, offsets)


def test_fake_quantize() -> None:
    x = torch.randn(50, requires_grad=True)
    t = conformance.to_tpu(x)
    got, want = (torch.fake_quantize_per_tensor_affine(v, 0.02, 3, -20, 100) for v in (t, x))
    conformance.close(got, want)
    conformance.close(torch.autograd.grad(got.sum(), t), torch.autograd.grad(want.sum(), x))


@pytest.mark.parametrize(
    "shape, axis, per_row", [((4, 6), 0, False), ((4, 6), 0, True), ((3, 4, 5, 2), 0, True), ((7,), 0, False)]
)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bounds", [(0, 255), (-128, 127), (0, 15)])
def test_observed_fake_quantization(shape, axis, per_row, symmetric, bounds) -> None:
    """Three steps of quantization-aware training: observed, observed and quantized, quantized alone."""
    rows = shape[axis] if per_row else 1
    state = [torch.full((rows,), float("inf")), torch.full((rows,), -float("inf")), torch.ones(rows)]
    state += [torch.zeros(rows, dtype=torch.int32)]
    moved = conformance.on_tpu(state)
    fill = {0: 3.0, 1: 1e-6, 2: 0.0}  # 1e-6: below the smallest scale

    def step(x, flags, state):
        x = x.clone().requires_grad_()
        flags = [torch.tensor([f], device=x.device) for f in flags]
        y = torch.fused_moving_avg_obs_fake_quant(x, *flags, *state, 0.25, *bounds, axis, per_row, symmetric)
        return y, *torch.autograd.grad(y.square().sum(), x), *state

    before = dict(torch.tpu.fallback_stats())
    for n, flags in enumerate([(1, 0), (1, 1), (0, 1), (1, 1), (0, 0)]):
        x = torch.randn(shape) * fill[n % 3] + 0.1 * n
        want = step(x, flags, state)
        conformance.close(step(x.to("tpu"), flags, moved), want, f"step {n}")
    assert dict(torch.tpu.fallback_stats()) == before


def test_observed_fake_quantization_refuses() -> None:
    for device in ("cpu", "tpu"):
        on = torch.ones(1, device=device)
        state = [torch.full((1,), v, device=device) for v in (0.0, 1.0, 1.0)]
        state.append(torch.zeros(1, dtype=torch.int32, device=device))
        for axis, per_row, why in [(2, False, "ch_axis must be < self.dim"), (1, True, "only supported on axis == 0")]:
            with pytest.raises(RuntimeError, match=why):
                torch.fused_moving_avg_obs_fake_quant(
                    torch.ones(2, 2, device=device), on, on, *state, 0.1, 0, 255, axis, per_row
                )


@pytest.mark.parametrize(
    "low, high", [(-1.0, 1.0), (0.0, 0.0), (float("inf"), -float("inf")), (-3.0, 0.0), (0.0, 1e-7)]
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_observed_parameters(low, high, symmetric) -> None:
    def parameters(device):
        state = [torch.tensor([v], device=device) for v in (low, high, 1.0)]
        state.append(torch.tensor([5], dtype=torch.int32, device=device))
        off, on = torch.tensor([0], device=device), torch.tensor([1], device=device)
        x = torch.tensor([1.0, -1.0, 0.3], device=device)
        return torch.fused_moving_avg_obs_fake_quant(x, off, on, *state, 0.1, 0, 255, 0, False, symmetric), *state

    conformance.close(parameters("tpu"), parameters("cpu"))


def grouped_by_hand(a, b, scale_a, scale_b, offsets):
    """Each group by itself, in float64."""
    groups = len(offsets) if offsets is not None else a.shape[0]
    cuts = [0, *offsets.tolist()] if offsets is not None else None
    a, b = a.double(), b.double()
    parts = []
    for g in range(groups):
        span = slice(cuts[g], cuts[g + 1]) if cuts else None
        if a.dim() == 2 and b.dim() == 2:
            sa, sb = scale_a.view(groups, -1)[g], scale_b.view(groups, -1)[g]
            parts.append((a[:, span] * sa[:, None]) @ (b[span] * sb))
        elif a.dim() == 2:
            parts.append((a[span] * scale_a[span, None]) @ (b[g] * scale_b[g]))
        elif b.dim() == 2:
            parts.append((a[g] * scale_a[g][:, None]) @ (b[:, span] * scale_b[span]))
        else:
            parts.append((a[g] * scale_a[g][:, None]) @ (b[g] * scale_b[g]))
    if a.dim() == 2 and b.dim() == 3:
        return torch.cat(parts)
    return torch.cat(parts, 1) if a.dim() == 3 and b.dim() == 2 else torch.stack(parts)


@pytest.mark.parametrize("ranks", [(2, 3), (2, 2), (3, 2), (3, 3)])
def test_scaled_products_in_groups(ranks) -> None:
    """The CPU has no kernel: judged by products in float64."""
    m, k, n, groups = 48, 32, 16, 3
    offsets = torch.tensor([16, 16, {(2, 3): m, (2, 2): k, (3, 2): n}.get(ranks, 0)], dtype=torch.int32)
    a = torch.randn((groups, m, k) if ranks[0] == 3 else (m, k)).to(torch.float8_e4m3fn)
    b = torch.randn((groups, n, k) if ranks[1] == 3 else (n, k)).to(torch.float8_e4m3fn).transpose(-2, -1)
    own = groups if ranks == (2, 2) else 1
    scale_a = torch.rand((groups, m) if ranks[0] == 3 else (m * own,)) + 0.5
    scale_b = torch.rand((groups, n) if ranks[1] == 3 else (n * own,)) + 0.5
    given = offsets if 2 in ranks else None
    want = grouped_by_hand(a, b, scale_a, scale_b, given)
    moved = conformance.on_tpu((a, b, scale_a, scale_b, given))
    before = dict(torch.tpu.fallback_stats())
    got = aten._scaled_grouped_mm(*moved, out_dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16 and dict(torch.tpu.fallback_stats()) == before
    torch.testing.assert_close(got.cpu().double(), want, rtol=8e-3, atol=1e-2)
    with pytest.raises(RuntimeError, match="float8"):
        aten._scaled_grouped_mm(moved[0].float(), *moved[1:])
    with pytest.raises(RuntimeError, match="scale_a"):
        aten._scaled_grouped_mm(*moved[:2], moved[2][:-1], *moved[3:])


@pytest.mark.parametrize("zero", [torch.int32, torch.float32])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fake_quantize_by_channel(axis, zero) -> None:
    x = torch.randn(3, 3, 3)
    scale, zero_point = torch.rand(3) + 0.01, torch.tensor([0, 3, -2]).to(zero)
    same(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, axis, -8, 7), x, scale, zero_point)
    on = torch.tensor([1])
    qparams = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    same(lambda x, s, z, on: qparams(x, s, z, on, -8, 7), x, scale[:1], torch.tensor([2], dtype=torch.int32), on)


def test_batch_norm_with_update() -> None:
    x, w, b, mean, var = torch.randn(4, 3, 2), torch.rand(3), torch.rand(3), torch.zeros(3), torch.ones(3)
    same(lambda *t: (*aten._batch_norm_with_update(*t, 0.1, 1e-5)[:3], *t[3:]), x, w, b, mean, var)


def test_is_set_to() -> None:
    x = torch.ones(4, device="tpu")
    assert x.is_set_to(x.detach()) and x.is_set_to(torch.empty(0, device="tpu").set_(x))
    assert not x.is_set_to(x[:2]) and not x.is_set_to(x.clone())


def test_attention_by_cudnn_name() -> None:
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    moved = conformance.on_tpu((q, k, v))
    leaves = [t.requires_grad_() for t in moved]
    out = aten._scaled_dot_product_cudnn_attention(*leaves, None, True, 0.0, True)[0]
    own = [t.clone().requires_grad_() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*own, is_causal=True)
    conformance.close(out, want)
    conformance.close(
        torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(want.sum(), own), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", [None, "attention", "padding"])
def test_transformer_in_inference(norm_first: bool, activation: str, mask: str | None) -> None:
    """The fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    square = torch.ones(5, 5, dtype=torch.bool).triu(1) if mask == "attention" else None
    padding = torch.arange(5) >= torch.tensor([[5], [3], [4]]) if mask == "padding" else None
    with torch.no_grad():
        want = layer(x, src_mask=square, src_key_padding_mask=padding)
        weighted = attention(x, x, x, attn_mask=square, key_padding_mask=padding)
        layer.to("tpu"), attention.to("tpu")
        x, square, padding = conformance.on_tpu((x, square, padding))
        before = dict(torch.tpu.fallback_stats())
        conformance.close(layer(x, src_mask=square, src_key_padding_mask=padding), want, rtol=1e-5, atol=1e-5)
        conformance.close(attention(x, x, x, attn_mask=square, key_padding_mask=padding), weighted)
        assert dict(torch.tpu.fallback_stats()) == before


def test_zeta_at_infinity() -> None:
    inf, nan = float("inf"), float("nan")
    q = torch.tensor([0.0, 1.0, 2.0, -1.5, inf, nan, 0.5, -inf, -3.0, -0.5, 1.0001])
    for x in (inf, nan, 2.0, 1.0, 0.5):
        same(torch.special.zeta, torch.full_like(q, x), q)


def test_attention_gradients_have_their_inputs_layout() -> None:
    qkv = torch.randn(2, 5, 3, 2, 4, device="tpu")
    q, k, v = (t.transpose(1, 2).requires_grad_() for t in qkv.unbind(2))
    y = F.scaled_dot_product_attention(q, k, v)
    for grad in torch.autograd.grad(y.sum(), (q, k, v)):
        assert grad.transpose(1, 2).is_contiguous()
