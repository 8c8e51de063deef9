# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 and 4 bits, and products in groups."""

import conformance
import pytest
import torch
from torch.nn import functional as F

aten = torch.ops.aten
FLOATS = [torch.bfloat16, torch.float16, torch.float32]


def as_near(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> None:
    """Sums in another order: no further from the exact product than the CPU, or than float32 may be."""
    assert got.device.type == "tpu" and got.dtype == want.dtype and got.shape == want.shape
    error, cpu_error = ((y.cpu().double() - exact).abs().max() for y in (got, want))
    assert error <= max(cpu_error, 1e-6 * exact.abs().max()), f"{error} from the exact product, the CPU {cpu_error}"


@pytest.mark.parametrize("dtype", FLOATS)
def test_int8_weights(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, scales = torch.randn(3, 64).to(dtype), torch.rand(16).to(dtype)
    w = torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    exact = x.double() @ (w.double() * scales.double()[:, None]).T
    as_near(
        aten._weight_int8pack_mm(*conformance.on_tpu((x, w, scales))), aten._weight_int8pack_mm(x, w, scales), exact
    )
    with pytest.raises(RuntimeError, match="int8"):
        aten._weight_int8pack_mm(*conformance.on_tpu((x, w.int(), scales)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_weights(dtype: torch.dtype, group: int) -> None:
    """The CPU's form of the two operators has another name, input and packing."""
    torch.manual_seed(0)
    n, k = 32, 128
    x, w = torch.randn(3, k).to(dtype), torch.randint(0, 16, (n, k), dtype=torch.int32)
    scales_and_zeros = (torch.rand(k // group, n, 2) * 0.1).to(dtype)
    packed = aten._convert_weight_to_int4pack_for_cpu(w, 2)
    want = aten._weight_int4pack_mm_for_cpu(x, packed, group, scales_and_zeros)
    pairs = (w[:, ::2] << 4 | w[:, 1::2]).to(torch.uint8)
    tpu_packed = torch._convert_weight_to_int4pack(pairs.to("tpu"), 4)
    assert tpu_packed.shape == (n // 8, k // 64, 32, 2) and tpu_packed.dtype == torch.int32
    got = torch._weight_int4pack_mm(x.to("tpu"), tpu_packed, group, scales_and_zeros.to("tpu"))
    exact = x.double() @ ((w - 8).double() * scales(scales_and_zeros, 0, group) + scales(scales_and_zeros, 1, group)).T
    as_near(got, want, exact)


def scales(scales_and_zeros: torch.Tensor, i: int, group: int) -> torch.Tensor:
    return scales_and_zeros[..., i].T.double().repeat_interleave(group, 1)


@pytest.mark.parametrize(
    "bad",
    [
        lambda x, w, s: torch._weight_int4pack_mm(x, w, 48, s),
        lambda x, w, s: torch._weight_int4pack_mm(x[:, :64], w, 32, s),
        lambda x, w, s: torch._weight_int4pack_mm(x, w, 32, s[:1]),
        lambda x, w, s: torch._weight_int4pack_mm(x, w.float(), 32, s),
        lambda x, w, s: torch._convert_weight_to_int4pack(w, 2),
        lambda x, w, s: torch._convert_weight_to_int4pack(torch.zeros(8, 64, dtype=torch.uint8, device="tpu"), 3),
    ],
)
def test_int4_refused(bad) -> None:
    w = torch._convert_weight_to_int4pack(torch.zeros(8, 64, dtype=torch.uint8, device="tpu"), 2)
    with pytest.raises(RuntimeError, match="int4pack"):
        bad(torch.ones(2, 128, device="tpu"), w, torch.ones(4, 8, 2, device="tpu"))


def offsets(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


GROUPED = {
    "rows": lambda r: (r(8, 16), r(3, 16, 8), offsets(2, 5, 8)),
    "transposed weights": lambda r: (r(8, 16), r(3, 8, 16).transpose(1, 2), offsets(2, 5, 8)),
    "an empty group": lambda r: (r(8, 16), r(3, 16, 8), offsets(0, 5, 8)),
    "columns": lambda r: (r(3, 8, 16), r(16, 8), offsets(2, 5, 8)),
    "both cut": lambda r: (r(16, 8), r(8, 16), offsets(2, 5, 8)),
    "a batch": lambda r: (r(3, 8, 16), r(3, 16, 8), None),
    "odd width": lambda r: (r(8, 16), r(3, 10, 16).transpose(1, 2), offsets(2, 5, 8)),
    "offsets missing": lambda r: (r(8, 16), r(3, 16, 8), None),
    "offsets of int64": lambda r: (r(8, 16), r(3, 16, 8), offsets(2, 5, 8).long()),
    "offsets not wanted": lambda r: (r(3, 8, 16), r(3, 16, 8), offsets(2, 5, 8)),
    "other count": lambda r: (r(8, 16), r(2, 16, 8), offsets(2, 5, 8)),
    "other size": lambda r: (r(8, 16), r(3, 24, 8), offsets(2, 5, 8)),
    "strides": lambda r: (r(8, 17), r(3, 17, 8), offsets(2, 5, 8)),
    "double": lambda r: (r(8, 16).double(), r(3, 16, 8).double(), offsets(2, 5, 8)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_mm(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, ends = GROUPED[name](lambda *s: torch.randn(*s, dtype=dtype))
    want, refused, _ = conformance.outcome(lambda: F.grouped_mm(a, b, offs=ends))
    ta, tb, tends = conformance.on_tpu((a, b, ends))
    got, tpu_refused, text = conformance.outcome(lambda: F.grouped_mm(ta, tb, offs=tends))
    assert tpu_refused is refused, text
    if refused:
        return
    conformance.close(got, want)
    assert got.stride() == want.stride()
    for t in (a, b, ta, tb):
        t.requires_grad_()
    dy = torch.randn(*want.shape, dtype=dtype)
    dy, tdy = torch.empty_like(want).copy_(dy), torch.empty_like(got).copy_(dy)
    want, refused, _ = conformance.outcome(lambda: torch.autograd.grad(F.grouped_mm(a, b, offs=ends), (a, b), dy))
    got, tpu_refused, text = conformance.outcome(
        lambda: torch.autograd.grad(F.grouped_mm(ta, tb, offs=tends), (ta, tb), tdy)
    )
    assert tpu_refused is refused, text
    if not refused:
        conformance.close(got, want)


def test_grouped_mm_compiles_once_for_all_offsets() -> None:
    a, b = torch.randn(8, 16, device="tpu"), torch.randn(3, 16, 8, device="tpu")
    counts = set()
    for i in range(1, 8):
        F.grouped_mm(a, b, offs=offsets(0, i, 8).to("tpu"))
        counts.add(torch.tpu.metrics()["plans"])
    assert len(counts) == 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_mm_under_compile(name: str, dtype: torch.dtype, fresh_dynamo: None) -> None:
    # PyTorch's own rule for tracing takes bfloat16 alone.
    a, b, ends = GROUPED[name](lambda *s: torch.randn(*s, dtype=dtype, device="tpu"))

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(a, b, offs=None if ends is None else ends.to("tpu")).square().float().mean()

    def gradients(f) -> list[torch.Tensor]:
        leaves = [a.detach().requires_grad_(), b.detach().requires_grad_()]
        return [*torch.autograd.grad(f(*leaves), leaves)]

    want, refused, _ = conformance.outcome(lambda: [t.cpu() for t in gradients(loss)])
    if not refused:
        conformance.close(gradients(torch.compile(loss, backend="tpu", fullgraph=True)), want)
