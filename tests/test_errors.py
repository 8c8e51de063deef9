# SPDX-License-Identifier: Apache-2.0
"""Bad input: an error of CPU PyTorch's class, at the call, and the process lives on."""

import pytest
import torch
import torch.nn.functional as F
from subprocess_run import run


@pytest.fixture(autouse=True)
def lives_on():
    yield
    assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]


def tensors(device):
    host = {
        "x": torch.arange(6.0).reshape(2, 3),
        "y": torch.arange(12.0).reshape(3, 4),
        "v": torch.arange(6.0),
        "i": torch.arange(6),
        "b": torch.arange(6) > 2,
        "c": torch.arange(6) * (1 + 1j),
        "e": torch.empty(0),
        "s": torch.tensor(2.0),
        "img": torch.ones(1, 2, 5, 5),
    }
    return {name: t.to(device) for name, t in host.items()}


# Each is called with the tensors above and the device's name.
BAD = {
    # shapes
    "add": lambda t, d: t["x"] + t["y"],
    "add in place grows": lambda t, d: t["v"].add_(torch.ones(2, 6, device=d)),
    "mul_ broadcast": lambda t, d: t["s"].mul_(t["v"]),
    "copy_": lambda t, d: t["v"].copy_(torch.ones(5, device=d)),
    "copy_ from the host": lambda t, d: t["v"].copy_(torch.ones(5)),
    "copy_ to the host": lambda t, d: torch.ones(5).copy_(t["v"]),
    "setitem": lambda t, d: t["x"].__setitem__(0, torch.ones(2, device=d)),
    "matmul": lambda t, d: t["y"] @ t["x"],
    "mm vector": lambda t, d: torch.mm(t["v"], t["v"]),
    "bmm": lambda t, d: torch.bmm(t["x"], t["y"]),
    "dot": lambda t, d: torch.dot(t["v"], t["e"]),
    "addmm": lambda t, d: torch.addmm(torch.ones(7, device=d), t["x"], t["y"]),
    "linear": lambda t, d: F.linear(t["x"], t["y"]),
    "cat": lambda t, d: torch.cat([t["x"], t["y"]]),
    "cat of none": lambda t, d: torch.cat([]),
    "stack": lambda t, d: torch.stack([t["x"], t["y"]]),
    "stack of none": lambda t, d: torch.stack([]),
    "conv2d channels": lambda t, d: F.conv2d(t["img"], torch.ones(2, 3, 3, 3, device=d)),
    "conv2d kernel": lambda t, d: F.conv2d(t["img"], torch.ones(2, 2, 7, 7, device=d)),
    "conv2d stride": lambda t, d: F.conv2d(t["img"], torch.ones(2, 2, 3, 3, device=d), stride=0),
    "conv2d groups": lambda t, d: F.conv2d(t["img"], torch.ones(3, 1, 3, 3, device=d), groups=2),
    "conv2d bias": lambda t, d: F.conv2d(t["img"], torch.ones(2, 2, 3, 3, device=d), torch.ones(3, device=d)),
    "max_pool2d": lambda t, d: F.max_pool2d(t["img"], 7),
    "max_pool2d padding": lambda t, d: F.max_pool2d(t["img"], 2, padding=2),
    "avg_pool2d": lambda t, d: F.avg_pool2d(t["img"], 0),
    "batch_norm": lambda t, d: F.batch_norm(t["img"], torch.ones(3, device=d), torch.ones(3, device=d)),
    "layer_norm": lambda t, d: F.layer_norm(t["x"], (4,)),
    "group_norm": lambda t, d: F.group_norm(t["img"], 3),
    "embedding weight": lambda t, d: F.embedding(t["i"], t["v"]),
    "cross_entropy": lambda t, d: F.cross_entropy(t["x"], torch.tensor([0, 1, 2], device=d)),
    "gather rank": lambda t, d: torch.gather(t["x"], 0, t["i"]),
    "gather size": lambda t, d: torch.gather(t["x"], 0, torch.zeros(2, 9, dtype=torch.long, device=d)),
    "scatter size": lambda t, d: t["x"].scatter(0, torch.zeros(2, 9, dtype=torch.long, device=d), t["x"]),
    "index_add": lambda t, d: t["v"].index_add(0, t["i"], torch.ones(5, device=d)),
    "index_select rank": lambda t, d: t["v"].index_select(0, torch.zeros(2, 2, dtype=torch.long, device=d)),
    "masked_select": lambda t, d: t["x"][t["b"]],
    "mask shape": lambda t, d: t["v"][torch.ones(5, dtype=torch.bool, device=d)],
    "too many indices": lambda t, d: t["x"][0, 0, 0],
    "indices broadcast": lambda t, d: t["x"][t["i"][:2], t["i"][:3]],
    "index_put shape": lambda t, d: t["v"].index_put_((t["i"][:3],), torch.ones(2, device=d)),
    "where": lambda t, d: torch.where(t["b"], t["x"], t["y"]),
    "topk": lambda t, d: t["v"].topk(7),
    "topk negative": lambda t, d: t["v"].topk(-1),
    "kthvalue": lambda t, d: t["v"].kthvalue(9),
    "kthvalue zero": lambda t, d: t["v"].kthvalue(0),
    "repeat": lambda t, d: t["x"].repeat(2),
    "repeat negative": lambda t, d: t["x"].repeat(2, -1),
    "repeat_interleave": lambda t, d: t["v"].repeat_interleave(torch.tensor([1, 2], device=d)),
    "pad": lambda t, d: F.pad(t["x"], (-2, -2)),
    "pad reflect": lambda t, d: F.pad(t["img"], (5, 5, 0, 0), mode="reflect"),
    "cross": lambda t, d: torch.cross(t["v"], t["v"], dim=0),
    "cholesky not square": lambda t, d: torch.linalg.cholesky(t["x"]),
    "solve": lambda t, d: torch.linalg.solve(torch.eye(3, device=d), t["x"]),
    "inv singular": lambda t, d: torch.linalg.inv(torch.zeros(3, 3, device=d)),
    "cholesky indefinite": lambda t, d: torch.linalg.cholesky(-torch.eye(3, device=d)),
    "scaled_dot_product_attention": lambda t, d: F.scaled_dot_product_attention(t["x"], t["x"], t["y"]),
    "one_hot": lambda t, d: F.one_hot(t["i"], 3),
    "bincount": lambda t, d: torch.bincount(-t["i"]),
    "bincount dtype": lambda t, d: torch.bincount(t["v"]),
    "tensor_split": lambda t, d: t["v"].tensor_split(0),
    "einsum": lambda t, d: torch.einsum("ij,jk->ik", t["x"], t["x"]),
    "interpolate": lambda t, d: F.interpolate(t["img"], size=(0, 1)),
    "searchsorted": lambda t, d: torch.searchsorted(t["x"], torch.ones(3, 1, device=d)),
    "nll_loss": lambda t, d: F.nll_loss(t["x"], t["i"]),
    "mse": lambda t, d: F.mse_loss(t["x"], t["y"]),
    "flip": lambda t, d: t["x"].flip(0, 0),
    "roll": lambda t, d: t["x"].roll((1, 2), 0),
    "rot90": lambda t, d: t["v"].rot90(),
    "tril": lambda t, d: t["v"].tril(),
    "trace": lambda t, d: t["v"].trace(),
    "diag_embed": lambda t, d: t["x"].diag_embed(0, 0, 0),
    "cdist": lambda t, d: torch.cdist(t["x"], t["y"]),
    "glu": lambda t, d: F.glu(t["x"]),
    "pixel_shuffle": lambda t, d: F.pixel_shuffle(t["img"], 2),
    # dimensions
    "sum dim": lambda t, d: t["x"].sum(2),
    "sum dim twice": lambda t, d: t["x"].sum((0, 0)),
    "softmax dim": lambda t, d: t["x"].softmax(5),
    "cumsum dim": lambda t, d: t["x"].cumsum(-3),
    "max dim": lambda t, d: t["x"].max(2),
    "sort dim": lambda t, d: t["x"].sort(2),
    "argmax dim": lambda t, d: t["x"].argmax(7),
    "cat dim": lambda t, d: torch.cat([t["x"]], 2),
    "gather dim": lambda t, d: torch.gather(t["x"], 3, t["x"].long()),
    "norm dim": lambda t, d: torch.linalg.vector_norm(t["x"], dim=4),
    "max of none": lambda t, d: t["e"].max(),
    "max of none dim": lambda t, d: torch.empty(2, 0, device=d).max(1),
    "argmax of none": lambda t, d: t["e"].argmax(),
    "amax of none": lambda t, d: torch.empty(2, 0, device=d).amax(1),
    "median of none dim": lambda t, d: torch.empty(2, 0, device=d).median(1),
    "topk of none": lambda t, d: t["e"].topk(1),
    "aminmax of none": lambda t, d: t["e"].aminmax(),
    "multinomial of none": lambda t, d: torch.multinomial(t["e"], 1),
    # dtypes
    "add_ result type": lambda t, d: t["i"].add_(1.5),
    "mul_ result type": lambda t, d: t["i"].mul_(1.5),
    "mul_ complex": lambda t, d: t["v"].mul_(1j),
    "add_ complex": lambda t, d: t["v"].add_(t["c"]),
    "div_ result type": lambda t, d: t["i"].div_(2),
    "sqrt_ result type": lambda t, d: t["i"].sqrt_(),
    "bool add_": lambda t, d: t["b"].add_(1),
    "bool sub": lambda t, d: t["b"] - t["b"],
    "bool neg": lambda t, d: -t["b"],
    "float invert": lambda t, d: ~t["v"],
    "float and": lambda t, d: t["v"] & t["v"],
    "out dtype": lambda t, d: torch.add(t["v"], 1, out=t["i"]),
    "out dtype complex": lambda t, d: torch.mul(t["c"], 1, out=t["v"]),
    "sum out dtype": lambda t, d: torch.sum(t["v"], 0, out=torch.empty((), dtype=torch.int32, device=d)),
    "matmul dtypes": lambda t, d: t["x"] @ t["y"].long(),
    "matmul bool": lambda t, d: (t["x"] > 0) @ (t["y"] > 0),
    "linear dtypes": lambda t, d: F.linear(t["x"], t["x"].double()),
    "conv2d dtypes": lambda t, d: F.conv2d(t["img"], torch.ones(2, 2, 3, 3, device=d, dtype=torch.float64)),
    "float index": lambda t, d: t["v"][t["v"]],
    "gather index dtype": lambda t, d: torch.gather(t["v"], 0, t["v"]),
    "index_select dtype": lambda t, d: t["v"].index_select(0, t["v"]),
    "embedding dtype": lambda t, d: F.embedding(t["v"], t["x"]),
    "scatter dtype": lambda t, d: t["v"].scatter(0, t["i"], t["v"].double()),
    "index_add dtype": lambda t, d: t["v"].index_add(0, t["i"], t["i"]),
    "masked_fill mask": lambda t, d: t["v"].masked_fill(t["i"], 1),
    "where condition": lambda t, d: torch.where(t["v"], t["v"], t["v"]),
    "mean of integers": lambda t, d: t["i"].mean(),
    "softmax of integers": lambda t, d: t["i"].softmax(0),
    "var of integers": lambda t, d: t["i"].var(),
    "normal_ of integers": lambda t, d: t["i"].normal_(),
    "rand of integers": lambda t, d: torch.rand(2, dtype=torch.long, device=d),
    "sort of complex": lambda t, d: t["c"].sort(),
    "max of complex": lambda t, d: t["c"].max(),
    "less of complex": lambda t, d: t["c"] < t["c"],
    "clamp of complex": lambda t, d: t["c"].clamp(0),
    "floor of complex": lambda t, d: t["c"].floor(),
    "remainder of complex": lambda t, d: t["c"] % 2,
    "cross_entropy dtype": lambda t, d: F.cross_entropy(t["x"], torch.ones(2, device=d)),
    "integer negative power": lambda t, d: t["i"] ** -1,
    "integer division": lambda t, d: t["i"] // 0,
    "integer remainder": lambda t, d: t["i"] % 0,
    "requires_grad of integers": lambda t, d: t["i"].requires_grad_(),
    "view_as_complex of integers": lambda t, d: torch.view_as_complex(torch.ones(3, 2, dtype=torch.int32, device=d)),
    "float8 add": lambda t, d: t["v"].to(torch.float8_e4m3fn) + t["v"].to(torch.float8_e5m2),
    # indices
    "index": lambda t, d: t["v"][torch.tensor([6], device=d)].cpu(),
    "index negative": lambda t, d: t["v"][torch.tensor([-7], device=d)].cpu(),
    "index put": lambda t, d: t["v"].__setitem__(torch.tensor([6], device=d), 1.0),
    "index of none": lambda t, d: t["e"][torch.tensor([0], device=d)].cpu(),
    "integer index": lambda t, d: t["v"][6],
    "index_select": lambda t, d: t["v"].index_select(0, torch.tensor([6], device=d)).cpu(),
    "index_copy": lambda t, d: t["v"].index_copy_(0, torch.tensor([6], device=d), torch.ones(1, device=d)),
    "index_fill": lambda t, d: t["v"].index_fill_(0, torch.tensor([6], device=d), 1.0),
    "take": lambda t, d: t["v"].take(torch.tensor([6], device=d)).cpu(),
    "put_": lambda t, d: t["v"].put_(torch.tensor([6], device=d), torch.ones(1, device=d)),
    "gather": lambda t, d: torch.gather(t["v"], 0, torch.tensor([6], device=d)).cpu(),
    "scatter": lambda t, d: t["v"].scatter_(0, torch.tensor([6], device=d), 1.0),
    "scatter_add": lambda t, d: t["v"].scatter_add_(0, torch.tensor([-1], device=d), torch.ones(1, device=d)),
    "embedding": lambda t, d: F.embedding(torch.tensor([2], device=d), t["x"]).cpu(),
    "nll target": lambda t, d: F.nll_loss(t["x"], torch.tensor([0, 3], device=d)).cpu(),
    "cross_entropy target": lambda t, d: F.cross_entropy(t["x"], torch.tensor([0, -1], device=d)).cpu(),
    "one_hot negative": lambda t, d: F.one_hot(torch.tensor([-1], device=d)),
    "multinomial": lambda t, d: torch.multinomial(-t["v"], 1).cpu(),
    # numbers
    "zeros negative": lambda t, d: torch.zeros(-1, device=d),
    "arange step": lambda t, d: torch.arange(0, 5, 0, device=d),
    "arange sign": lambda t, d: torch.arange(0, 5, -1, device=d),
    "arange nan": lambda t, d: torch.arange(0, float("nan"), device=d),
    "linspace steps": lambda t, d: torch.linspace(0, 1, -1, device=d),
    "eye": lambda t, d: torch.eye(-2, device=d),
    "randperm": lambda t, d: torch.randperm(-1, device=d),
    "randint": lambda t, d: torch.randint(5, 5, (2,), device=d),
    "random_": lambda t, d: t["v"].random_(5, 3),
    "normal_ std": lambda t, d: t["v"].normal_(0, -1),
    "uniform_": lambda t, d: t["v"].uniform_(3, 1),
    "bernoulli_": lambda t, d: t["v"].bernoulli_(1.5),
    "exponential_": lambda t, d: t["v"].exponential_(-1),
    "dropout": lambda t, d: F.dropout(t["v"], 1.5),
    "fill_ complex": lambda t, d: t["v"].fill_(1j),
    "full overflow": lambda t, d: torch.full((2,), 2**70, device=d, dtype=torch.long),
    "tensor overflow": lambda t, d: torch.tensor(2**70, device=d),
    "item": lambda t, d: t["x"].item(),
    "bool": lambda t, d: bool(t["x"]),
    "item of none": lambda t, d: t["e"].item(),
    # too large
    "size overflows": lambda t, d: torch.empty(1 << 40, 1 << 40, device=d),
    "bytes overflow": lambda t, d: torch.empty(1 << 62, device=d),
    "strides overflow": lambda t, d: torch.empty_strided((1 << 32, 2), (1 << 32, 1), device=d),
    "expand and flatten": lambda t, d: t["s"].expand(1 << 31, 1 << 33).reshape(-1),
    "repeat overflows": lambda t, d: t["v"].repeat(1 << 62),
    # devices
    "no such device": lambda t, d: torch.ones(1, device=f"{d}:99" if d == "tpu" else "cpu:99x"),
    "other device": lambda t, d: t["v"] + torch.ones(6, device="cpu" if d == "tpu" else "tpu"),
    "other device out": lambda t, d: torch.add(t["v"], 1, out=torch.ones(6, device="cpu" if d == "tpu" else "tpu")),
    "other device in place": lambda t, d: t["v"].add_(torch.ones(6, device="cpu" if d == "tpu" else "tpu")),
    "other device matmul": lambda t, d: t["x"] @ torch.ones(3, 4, device="cpu" if d == "tpu" else "tpu"),
    "other device cat": lambda t, d: torch.cat([t["v"], torch.ones(6, device="cpu" if d == "tpu" else "tpu")]),
    "other device where": lambda t, d: torch.where(
        t["b"], t["v"], torch.ones(6, device="cpu" if d == "tpu" else "tpu")
    ),
    "other device linear": lambda t, d: torch.nn.Linear(3, 2, device="cpu" if d == "tpu" else "tpu")(t["x"]),
    "other device embedding": lambda t, d: torch.nn.Embedding(9, 2, device="cpu" if d == "tpu" else "tpu")(t["i"]),
    "other device generator": lambda t, d: torch.randn(
        2, device=d, generator=torch.Generator("cpu" if d == "tpu" else "tpu")
    ),
    "other device gradient": lambda t, d: (
        t["v"].requires_grad_().mul(2).backward(torch.ones(6, device="cpu" if d == "tpu" else "tpu"))
    ),
    "other device grad": lambda t, d: setattr(t["v"], "grad", torch.ones(6, device="cpu" if d == "tpu" else "tpu")),
    "pinned on the device": lambda t, d: torch.empty(2, device="tpu", pin_memory=True),
    "pin a device tensor": lambda t, d: torch.ones(2, device="tpu").pin_memory(),
}

# The CPU names these differently, or not at all; what is raised here instead.
OURS = {
    "no such device": RuntimeError,
    "pinned on the device": RuntimeError,
    "pin a device tensor": RuntimeError,
    "bytes overflow": RuntimeError,
    "max of complex": RuntimeError,  # its subclass NotImplementedError there
    "repeat overflows": (RuntimeError, TypeError),
}


def raised(call, device):
    given = tensors(device)
    before = {name: t.cpu() for name, t in given.items()}
    try:
        call(given, device)
    except Exception as e:  # noqa: BLE001
        for name, t in given.items():
            assert t.shape == before[name].shape and torch.equal(t.detach().cpu(), before[name]), f"{name} has changed"
        return e
    return None


@pytest.mark.parametrize("name", BAD)
def test_same_error_as_on_the_cpu(name):
    there = raised(BAD[name], "tpu")
    if name in OURS:
        assert isinstance(there, OURS[name]), repr(there)
        return
    here = raised(BAD[name], "cpu")
    assert type(there) is type(here), (repr(here), repr(there))
    if there is not None:
        assert str(there) and "internal error" not in str(there), there


def test_index_errors_leave_no_trace():
    """What was in range may be written, as on the CPU; the storage stays usable."""
    x = torch.arange(6.0, device="tpu")
    y = x + 1
    for _ in range(3):
        with pytest.raises(IndexError):
            x[torch.tensor([0, 77], device="tpu")]
        with pytest.raises(RuntimeError):
            x.gather(0, torch.tensor([77], device="tpu"))
    assert torch.equal(x.cpu(), torch.arange(6.0)) and torch.equal(y.cpu(), torch.arange(6.0) + 1)


def test_empty_and_scalar_tensors_work():
    for device in ("cpu", "tpu"):
        e, s = torch.empty(0, 3, device=device), torch.tensor(2.0, device=device)
        w = torch.ones(2, 3, device=device)
        none = torch.empty(0, dtype=torch.long, device=device)
        results = [
            e.sum(), e.sum(1), e.mean(0), e.prod(), e @ w.t(), torch.cat([e, e]), e.t().contiguous(), w[:, :0] @ e,
            e.softmax(1), e.sort(1).values, e.cumsum(0), e.any(), e.all(), e[e > 0], e.nonzero(), e.unique(), s.sum(0),
            s.softmax(0), s.sort(-1).values, s.cumsum(0), s.max(0).values, s.nonzero(), s[None], s.expand(2, 2),
            s.view(1, 1), s.t(), s.flip(0), s.argmax(), torch.stack([s, s]), s.topk(1).values, e.view(3, 0),
            e.reshape(-1), e.flip(0), e.roll(1), e.repeat(2, 2), e.expand(4, 0, 3), s.repeat(3), e.clamp(0), e.add(1),
            F.relu(e), F.linear(e, w), F.embedding(none, w), w[none], torch.linspace(0, 1, 0, device=device),
            torch.arange(0, device=device), torch.eye(0, device=device), torch.randn(0, device=device),
            torch.randperm(0, device=device),
        ]  # fmt: skip
        if device == "cpu":
            expected = results
    for i, (a, b) in enumerate(zip(expected, results, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, i
        torch.testing.assert_close(b.cpu(), a, equal_nan=True)


def test_out_resizes_with_a_warning():
    for device in ("cpu", "tpu"):
        out = torch.ones(2, device=device)
        with pytest.warns(UserWarning, match="was resized since it had shape"):
            torch.add(torch.ones(3, device=device), 1, out=out)
        assert out.tolist() == [2, 2, 2]
        out = torch.empty(0, device=device)
        torch.add(torch.ones(3, device=device), 1, out=out)
        assert out.shape == (3,)


def test_out_of_memory_at_once():
    for make in (
        lambda: torch.empty(10 * 2**40, dtype=torch.uint8, device="tpu").add_(1),
        lambda: torch.zeros(10 * 2**40, dtype=torch.uint8, device="tpu") + 1,
        lambda: torch.ones(10 * 2**38, device="tpu"),
        lambda: torch.randn(2**40, device="tpu"),
        lambda: torch.ones(1, device="tpu").expand(2**41).contiguous(),
        lambda: torch.ones(2**20, 1, device="tpu") @ torch.ones(1, 2**21, device="tpu"),
        lambda: torch.ones(1, device="tpu").repeat(2**41),
        lambda: torch.arange(2**40, device="tpu"),
        lambda: torch.ones(2, device="tpu").untyped_storage().resize_(2**43),
    ):
        with pytest.raises(torch.OutOfMemoryError, match="out of memory|GiB|TiB|bytes"):
            make()
        torch.tpu.synchronize()


def test_small_memory():
    run(
        """
        import torch
        x = torch.ones(1 << 20, device="tpu")                       # 4 of 32 MiB
        big = lambda: [torch.ones(1 << 20, device="tpu") for _ in range(20)]
        for bad in (big, lambda: x.expand(16, 1 << 20).contiguous(), lambda: torch.randn(1 << 24, device="tpu"),
                    lambda: torch.ones(1 << 24).to("tpu"), lambda: torch.cat([x] * 12), lambda: x.repeat(10) * 2,
                    lambda: x[:4096, None] @ x[None, :4096], lambda: torch.nn.Linear(4000, 4000).to("tpu")):
            for _ in range(2):
                try:
                    bad()
                    torch.tpu.synchronize()
                except torch.OutOfMemoryError as e:
                    assert "out of memory" in str(e), e
                else:
                    raise AssertionError("no error")
                assert (x + 1)[5].item() == 2
        # In-place at the limit: the old value stays where there is no room for the new one.
        y = [x.clone().add_(i) for i in range(5)]
        try:
            rest = [torch.ones(1 << 18, device="tpu") + 1 for _ in range(50)]
        except torch.OutOfMemoryError:
            pass
        keep = x.view(1024, 1024).t()
        try:
            x.copy_(x * 2 + 1)
        except torch.OutOfMemoryError:
            assert x[0].item() == 1
        del y, rest
        assert x.sum().item() in (1 << 20, 3 << 20)
        # Backward out of memory, then a smaller one.
        w = torch.ones(1 << 20, device="tpu", requires_grad=True)
        try:
            sum((w * i).exp() for i in range(9)).sum().backward()
        except torch.OutOfMemoryError:
            pass
        w.grad = None
        (w * 2).sum().backward()
        assert w.grad[0].item() == 2
        """.replace("rest = [", "rest = None; rest = ["),
        TORCH_TPU_MEMORY_LIMIT_MB="32",
    )


def test_invalid_devices():
    for bad in (
        lambda: torch.ones(1, device="tpu:1"),
        lambda: torch.ones(1).to("tpu:9"),
        lambda: torch.empty(1, device="tpu:100"),
        lambda: torch.tpu.set_device(5),
        lambda: torch.tpu.synchronize(5),
        lambda: torch.tpu.get_device_name(5),
        lambda: torch.Generator("tpu:5"),
        lambda: torch.ones(1, device="tpu:-1"),
        lambda: torch.ones(1, device="tpu:x"),
        lambda: torch.device("tpux"),
        lambda: torch.tpu.memory_allocated(7),
        lambda: torch.ones(1, device="tpu").to("tpu:3"),
        lambda: torch.tpu.Stream(device="tpu:4"),
    ):
        with pytest.raises((RuntimeError, ValueError, AssertionError, IndexError)) as e:
            bad()
        assert "internal" not in str(e.value)
    assert torch.tpu.current_device() == 0


def test_unsupported_kinds():
    x = torch.arange(4.0, device="tpu")
    for bad in (
        lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda: x.to_mkldnn(),
        lambda: torch.frombuffer(b"abcd", dtype=torch.uint8).to("tpu").numpy(),
        lambda: x.to(torch.quint8),
        lambda: torch.empty(2, dtype=torch.qint8, device="tpu"),
    ):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            bad()
        assert x.tolist() == [0, 1, 2, 3]


def test_debug_mode_names_the_operator():
    run(
        """
        import torch
        x = torch.ones(3, device="tpu")
        for bad in (lambda: x + torch.ones(4, device="tpu"), lambda: x @ torch.ones(4, 4, device="tpu")):
            try:
                bad()
            except RuntimeError as e:
                assert "internal" not in str(e)
            else:
                raise AssertionError
        assert (x + 1).tolist() == [2, 2, 2]
        """,
        TORCH_TPU_LAUNCH_BLOCKING="1",
    )
