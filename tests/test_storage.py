# SPDX-License-Identifier: Apache-2.0
"""Storages and what shares them: set_, resize_, saving, exchanging, aliasing, donation, autograd on views."""

import copy
import gc
import io
import pickle
import weakref

import numpy
import pytest
import torch
from subprocess_run import run
from torch.autograd import gradcheck, gradgradcheck


def pair(*shape, dtype=torch.float32):
    n = 1
    for s in shape:
        n *= s
    host = torch.arange(n).to(dtype).reshape(shape)
    return host, host.to("tpu")


# ---- The storage itself ----


def test_storage_is_shared():
    host, x = pair(4, 6)
    v = x[1:, 2:]
    assert x.untyped_storage().nbytes() == v.untyped_storage().nbytes() == host.untyped_storage().nbytes() == 96
    assert x.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() == x.data_ptr()
    assert v.data_ptr() - x.data_ptr() == 8 * 4
    assert x.untyped_storage().device == torch.device("tpu", 0)
    assert x.data_ptr() != x.clone().data_ptr() != 0
    assert x.storage_offset() == 0 and v.storage_offset() == 8
    assert v._base is x and v._is_view()
    assert x.untyped_storage()._cdata == v.untyped_storage()._cdata


def test_addresses_are_unique_and_reused():
    kept = [torch.empty(n, device="tpu") for n in (0, 1, 7, 100, 1000, 0)]
    spans = sorted((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in kept)
    for (a, n), (b, _) in zip(spans, spans[1:], strict=False):
        assert a + n <= b
    assert all(a for a, _ in spans)
    # PyTorch gives null to tensors without elements.
    assert torch.empty(0, device="tpu").data_ptr() == torch.empty(0).data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16])
def test_set(dtype):
    host, x = pair(12, dtype=dtype)
    h2, x2 = torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype, device="tpu")
    h2.set_(host.untyped_storage(), 2, (2, 3), (4, 1))
    x2.set_(x.untyped_storage(), 2, (2, 3), (4, 1))
    assert torch.equal(x2.cpu(), h2) and x2.stride() == h2.stride()
    h2.fill_(1)
    x2.fill_(1)
    assert torch.equal(x.cpu(), host)
    h2.set_(host)
    x2.set_(x)
    assert torch.equal(x2.cpu(), h2) and x2.data_ptr() == x.data_ptr()
    h2.set_(host.untyped_storage())
    x2.set_(x.untyped_storage())
    assert torch.equal(x2.cpu(), h2)
    h2.set_()
    x2.set_()
    assert x2.shape == h2.shape == (0,) and x2.device.type == "tpu"
    assert torch.equal(x.cpu(), host)


def test_bad_set():
    errors = []
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0, device=device)
        here = []
        for bad in (
            lambda x=x: x.set_(x.untyped_storage(), -1, (2,), (1,)),
            lambda x=x: x.set_(x.untyped_storage(), 0, (2,), (-1,)),
            lambda x=x: x.set_(x.untyped_storage(), 0, (-2,), (1,)),
            lambda x=x: x.set_(x.untyped_storage(), 0, (2, 2), (1,)),
            lambda x=x: x.set_(torch.arange(3)),
            lambda x=x: x.set_(torch.empty(3, device="cpu" if x.device.type == "tpu" else "tpu")),
        ):
            with pytest.raises(Exception) as e:
                bad()
            here.append(type(e.value))
        errors.append(here)
    assert errors[0] == errors[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int16, torch.complex64])
def test_resize(dtype):
    host, x = pair(6, dtype=dtype)
    seen_h, seen_x = host[2:5], x[2:5]
    for size in ((2, 2), (6,), (3, 2), (20,), (0,), (6,), (4, 5), ()):
        old = host.untyped_storage().nbytes()
        host.resize_(size)
        x.resize_(size)
        assert x.shape == host.shape and x.stride() == host.stride()
        assert x.untyped_storage().nbytes() == host.untyped_storage().nbytes()
        grown = host.untyped_storage().nbytes() - old
        if grown:  # the new part is undefined; what was there is kept
            keep = old // dtype.itemsize
            assert torch.equal(x.view(-1)[:keep].cpu(), host.view(-1)[:keep])
            host.view(-1)[keep:] = 1
            x.view(-1)[keep:] = 1
        assert torch.equal(x.cpu(), host)
        assert torch.equal(seen_x.cpu(), seen_h)
        host.fill_(1)
        x.fill_(1)
        assert torch.equal(seen_x.cpu(), seen_h)


def test_resize_of_a_view_and_formats():
    host, x = pair(4, 4)
    host[1:, 1:].resize_(2, 2)
    v = x[1:, 1:].resize_(2, 2)
    assert torch.equal(v.cpu(), host[1:, 1:].resize_(2, 2))
    v.resize_(5, 5)  # past the end: the storage grows, x sees its old data
    assert torch.equal(x.cpu(), host)
    v.fill_(3)
    assert x.view(-1)[:5].tolist() == [0, 1, 2, 3, 4] and x.view(-1)[5:].eq(3).all()
    c = torch.empty(0, device="tpu").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert c.is_contiguous(memory_format=torch.channels_last)
    e = torch.empty(0, device="tpu").resize_as_(x)
    assert e.shape == x.shape
    with pytest.raises(RuntimeError):
        x.resize_(-1)
    with pytest.raises(RuntimeError, match="require grad"):
        torch.ones(2, device="tpu", requires_grad=True).resize_(3)


def test_storage_resize():
    x = torch.arange(6.0, device="tpu")
    s = x.untyped_storage()
    s.resize_(0)
    assert s.nbytes() == 0 and x.shape == (6,)  # as FSDP frees parameters
    s.resize_(24)
    x.copy_(torch.arange(6.0))
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    s.resize_(48)
    assert s.nbytes() == 48 and x.tolist() == [0, 1, 2, 3, 4, 5]


def test_storage_smaller_than_its_tensor():
    x = torch.arange(6.0, device="tpu") + 1
    x.untyped_storage().resize_(0)
    for use in (lambda: x + 1, lambda: x.cpu(), lambda: x.add_(1), lambda: x.tolist(), lambda: x[3:].sum()):
        with pytest.raises(RuntimeError, match="a storage of 0: the storage was resized|out of bounds for storage"):
            use()
    x.untyped_storage().resize_(12)
    for use in (lambda: x + 1, lambda: x.cpu(), lambda: x.view(2, 3).t() * 2):
        with pytest.raises(RuntimeError, match="the storage was resized|out of bounds for storage"):
            use()
    assert (x[:3] + 1).shape == (3,)
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def test_storage_methods():
    host, x = pair(6)
    s = x.untyped_storage()
    assert s.cpu().tolist() == host.untyped_storage().tolist()
    assert s.clone().device.type == "tpu" and s.clone().data_ptr() != s.data_ptr()
    t = torch.empty(6, device="tpu")
    t.untyped_storage().copy_(s)
    assert torch.equal(t.cpu(), host)
    t.untyped_storage().copy_(torch.ones(6).untyped_storage())
    assert torch.equal(t.cpu(), torch.ones(6))
    t.untyped_storage().fill_(0)
    assert torch.equal(t.cpu(), torch.zeros(6))
    u = torch.UntypedStorage(24, device="tpu")
    assert u.nbytes() == 24 and u.device.type == "tpu"
    assert host.untyped_storage().tpu().device.type == "tpu"
    typed = x.storage()
    assert len(typed) == 6 and typed.dtype is torch.float32


def test_data_and_detach():
    host, x = pair(3, 4)
    p = torch.nn.Parameter(x.clone())
    alias, data = p.detach(), p.data
    assert alias.data_ptr() == data.data_ptr() == p.data_ptr()
    data[0] = -1
    assert torch.equal(p[0].detach().cpu(), torch.full((4,), -1.0))
    assert alias._version == p._version == 0 or alias._version == p._version  # detach shares the counter
    version = p._version
    data.add_(1)
    assert p._version == version  # .data doesn't
    alias.add_(1)
    assert p._version == version + 1
    p.data = torch.zeros(2, 2, device="tpu")  # rebinding: the old storage stays with its views
    assert p.shape == (2, 2) and p.sum().item() == 0 and alias.shape == (3, 4)
    p.data = torch.ones(5, dtype=torch.float32, device="tpu")
    (p * 2).sum().backward()
    assert p.grad.tolist() == [2] * 5
    for to in ("cpu", "tpu"):
        q = torch.nn.Parameter(torch.ones(2, device=to))
        other = "tpu" if to == "cpu" else "cpu"
        q.data = torch.full((3,), 2.0, device=other)  # as between the CPU and CUDA
        assert q.device.type == other and q.tolist() == [2] * 3
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            q.data = torch.ones(2).to_sparse()


# ---- Values shared inside ----


def test_copies_do_not_alias():
    for make in (
        lambda x: x.clone(),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: torch.empty(x.shape, device="tpu").copy_(x),
        lambda x: x.contiguous().clone(),
        lambda x: copy.deepcopy(x),
        lambda x: x.detach().clone(),
        lambda x: x.to("tpu", copy=True),
        lambda x: x.reshape(-1).clone().reshape(x.shape),
        lambda x: x.expand(1, *x.shape).clone()[0],
        lambda x: torch.cat([x]),
        lambda x: x.t().contiguous().t(),
        lambda x: x + 0,
        lambda x: x * 1,
        lambda x: x.view(torch.int32).clone().view(torch.float32),
    ):
        host, x = pair(3, 4)
        y = make(x)
        x.add_(1)
        assert torch.equal(y.cpu(), host)
        y.mul_(2)
        y[0, 0] = 99
        assert torch.equal(x.cpu(), host + 1)
        z = make(x)
        del x
        z.add_(1)
        assert torch.equal(z.cpu(), host + 2)


def test_same_object_back():
    x = torch.ones(2, 3, device="tpu")
    assert x.to("tpu") is x and x.contiguous() is x and x.tpu() is x and x.to("tpu:0") is x
    assert x.float() is x and x.reshape(3, 2).data_ptr() == x.data_ptr()
    assert torch.as_tensor(x) is x
    assert torch.asarray(x).data_ptr() == x.data_ptr()


def test_in_place_while_the_old_value_is_used():
    x = torch.arange(1 << 12, dtype=torch.float32, device="tpu")
    host = x.cpu()
    for i in range(20):
        y = x * 2  # may be pending when x is written
        z = x.view(64, 64).t()
        before = x.clone()
        shared = torch.empty_like(x).copy_(x)
        x.add_(1)
        assert torch.equal(y.cpu(), (host + i) * 2)
        assert torch.equal(before.cpu(), host + i) and torch.equal(shared.cpu(), host + i)
        assert torch.equal(z.cpu(), (host + i + 1).view(64, 64).t())


def test_in_place_during_pending_copies():
    x = torch.zeros(1 << 16, device="tpu")
    out = [torch.empty(1 << 16, pin_memory=True) for _ in range(8)]
    for i, o in enumerate(out):
        x.fill_(i)
        o.copy_(x, non_blocking=True)
        x.add_(100)
    torch.tpu.synchronize()
    for i, o in enumerate(out):
        assert o.eq(i).all()


def test_failed_writes_leave_the_old_value():
    x = torch.arange(6.0, device="tpu")
    for bad in (
        lambda: x.add_(torch.ones(7, device="tpu")),
        lambda: x.copy_(torch.ones(5)),
        lambda: x.index_fill_(0, torch.tensor([9], device="tpu"), 1),
        lambda: x.scatter_(0, torch.tensor([7], device="tpu"), 1.0),
        lambda: x.__setitem__(torch.tensor([100], device="tpu"), 1.0),
        lambda: x.index_add_(0, torch.tensor([-9], device="tpu"), torch.ones(1, device="tpu")),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            bad()
        assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_same_tensor_twice():
    for device in ("cpu", "tpu"):
        x = torch.arange(4.0, device=device)
        x.add_(x)
        x.mul_(x.flip(0))
        torch.add(x, x, out=x)
        x.addcmul_(x, x)
        x[:] = x[:].clone() + x
        result = x.cpu()
        if device == "cpu":
            expected = result
    assert torch.equal(result, expected)


# ---- Copies to and from the host ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64, torch.float16, torch.int64])
def test_copies_between_host_and_device(dtype):
    host = torch.arange(24).to(dtype).reshape(2, 3, 4)
    for source in (
        host, host.transpose(0, 2), host[:, 1:], host[..., ::2], host.expand(5, 2, 3, 4), host[:0],
        host[0, 0, 0], host.permute(2, 0, 1)[1:, :, 2:],
    ):  # fmt: skip
        moved = source.to("tpu")
        assert torch.equal(moved.cpu(), source) and moved.dtype is dtype
        assert moved.stride() == source.clone().stride() or source.numel() == 0 or 0 in source.stride()
        back = torch.empty(source.shape, dtype=dtype)
        back.copy_(moved)
        assert torch.equal(back, source)
        for other in (torch.float64, torch.int32, torch.bfloat16):
            if dtype.is_complex:
                continue
            assert torch.equal(source.to("tpu", other).cpu(), source.to(other))
            assert torch.equal(moved.to("cpu", other), source.to(other))
            assert torch.equal(torch.empty(source.shape, dtype=other).copy_(moved), source.to(other))
            assert torch.equal(
                torch.empty(source.shape, dtype=other, device="tpu").copy_(source).cpu(), source.to(other)
            )
    # Into views on either side, with broadcasting.
    big, there = torch.zeros(4, 3, 8, dtype=dtype), torch.zeros(4, 3, 8, dtype=dtype, device="tpu")
    big[::2, :, ::2] = host
    there[::2, :, ::2] = host
    assert torch.equal(there.cpu(), big)
    big[1, :, 4:] = host[0, 0]
    there[1, :, 4:] = host[0, 0]
    assert torch.equal(there.cpu(), big)
    target = torch.zeros(4, 3, 8, dtype=dtype)
    target[1::2, :, 1::2].copy_(there[1::2, :, :4])
    assert torch.equal(target[1::2, :, 1::2], big[1::2, :, :4])


def test_large_storage_small_view():
    x = torch.zeros(1 << 20, device="tpu")
    x[1 << 19] = 5
    assert x[1 << 19].item() == 5
    assert x[(1 << 19) - 1 : (1 << 19) + 2].tolist() == [0, 5, 0]
    assert x.view(1024, 1024)[512, :3].cpu().tolist() == [5, 0, 0]
    assert x.view(1024, 1024).t()[:3, 511:514].cpu().tolist() == [[0, 5, 0], [0, 0, 0], [0, 0, 0]]


def test_channels_last():
    host = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    for source in (host, host.to(memory_format=torch.channels_last)):
        x = source.to("tpu")
        assert x.stride() == source.stride() and torch.equal(x.cpu(), source) and x.cpu().stride() == source.stride()
        for fmt in (torch.channels_last, torch.contiguous_format, torch.preserve_format):
            y = x.clone(memory_format=fmt)
            assert y.stride() == source.clone(memory_format=fmt).stride() and torch.equal(y.cpu(), source)
        assert (x + 1).stride() == (source + 1).stride()
        assert torch.empty_like(x).stride() == torch.empty_like(source).stride()
        x[:, 1].add_(5)
        expected = source.clone()
        expected[:, 1].add_(5)
        assert torch.equal(x.cpu(), expected)
    volume = torch.zeros(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    assert volume.to("tpu").stride() == volume.stride()
    assert (
        torch.empty_permuted((2, 3, 4), (2, 0, 1), device="tpu").stride()
        == torch.empty_permuted((2, 3, 4), (2, 0, 1)).stride()
    )


def test_empty_reads_without_fault():
    for shape in ((), (0,), (3, 4), (0, 5)):
        for dtype in (torch.float32, torch.bool, torch.complex128, torch.uint16, torch.float8_e4m3fn):
            x = torch.empty(shape, dtype=dtype, device="tpu")
            assert x.cpu().shape == shape
            x.clone()
            assert torch.empty_strided(shape, [1] * len(shape), dtype=dtype, device="tpu").cpu().shape == shape


def test_python_values():
    host, x = pair(2, 3)
    assert x.tolist() == host.tolist() and len(x) == 2
    assert [r.tolist() for r in x] == host.tolist()
    assert x[1, 2].item() == 5 and float(x[1, 2]) == 5 and int(x[1, 2]) == 5 and bool(x[1, 2])
    assert complex(x[0, 1]) == 1 and torch.ones(1, 1, device="tpu").item() == 1
    assert [10, 20, 30][torch.tensor(1, device="tpu")] == 20
    assert f"{x[1, 2]:.1f}" == "5.0" and f"{x[0, 0]}" == "0.0"
    assert repr(x) == repr(host)[:-1] + ", device='tpu:0')"
    assert "device='tpu:0'" in repr(x.bool()) and "requires_grad" in repr(x.requires_grad_())
    assert "size=(0, 3)" in repr(torch.empty(0, 3, device="tpu"))
    assert "..." in repr(torch.zeros(2000, device="tpu")) and "j" in repr(
        torch.ones(2, dtype=torch.complex64, device="tpu")
    )
    assert 5 in x and 99 not in x
    assert hash(x) == hash(x) and x.is_tpu and x.get_device() == 0 and x.type() == "torch.tpu.FloatTensor"
    for empty in (lambda d: len(torch.ones((), device=d)), lambda d: list(torch.ones((), device=d)),
                  lambda d: bool(torch.ones(2, device=d)), lambda d: torch.ones(2, device=d).item(),
                  lambda d: int(torch.ones(0, device=d)), lambda d: float(torch.tensor(1j, device=d)),
                  lambda d: [1, 2][torch.tensor(1.5, device=d)]):  # fmt: skip
        with pytest.raises(Exception) as cpu:
            empty("cpu")
        with pytest.raises(type(cpu.value)):
            empty("tpu")


def test_numpy():
    host, x = pair(2, 3)
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        numpy.asarray(x)
    assert (x.cpu().numpy() == host.numpy()).all() and (x.numpy(force=True) == host.numpy()).all()
    assert (torch.from_numpy(host.numpy()).to("tpu").cpu().numpy() == host.numpy()).all()
    assert torch.tensor(host.numpy(), device="tpu").tolist() == host.tolist()
    assert torch.as_tensor(host.numpy(), device="tpu").tolist() == host.tolist()
    assert (x + numpy.float32(2)).tolist() == (host + 2).tolist()
    flipped = torch.from_numpy(host.numpy().T).to("tpu")
    assert torch.equal(flipped.cpu(), host.t())


# ---- deepcopy, pickle, save and load ----


def test_deepcopy():
    host, x = pair(4, 6)
    both = copy.deepcopy([x, x[1:], x.t()])
    assert both[0].device == x.device and both[0].data_ptr() != x.data_ptr()
    assert both[1].untyped_storage().data_ptr() == both[0].data_ptr() == both[2].data_ptr()
    both[0].zero_()
    assert both[1].sum().item() == 0 and torch.equal(x.cpu(), host)
    assert both[2].stride() == x.t().stride()
    p = torch.nn.Parameter(x.clone())
    p.grad = torch.ones_like(p)
    q = copy.deepcopy(p)
    assert isinstance(q, torch.nn.Parameter) and torch.equal(q.cpu(), p.cpu())
    c = torch.ones(2, dtype=torch.complex64, device="tpu").conj()
    assert torch.equal(copy.deepcopy(c).cpu(), c.cpu())
    assert copy.copy(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.int64])
def test_pickle(dtype):
    host = torch.arange(12).float().to(dtype).reshape(3, 4)
    x = host.to("tpu")
    y, z = pickle.loads(pickle.dumps((x, x.t()[1:])))
    assert y.device == x.device and y.dtype is dtype
    assert torch.equal(y.cpu().view(torch.uint8), host.view(torch.uint8))
    assert z.stride() == x.t()[1:].stride() and torch.equal(z.cpu(), host.t()[1:])


def saved(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_save_and_load(zipped):
    host, x = pair(4, 6)
    thing = {"x": x, "view": x[1:3, ::2], "t": x.t(), "p": torch.nn.Parameter(x.clone()), "n": 3, "e": x[:0]}
    file = saved(thing, _use_new_zipfile_serialization=zipped)
    for map_location, device in (
        (None, "tpu"), ("cpu", "cpu"), ("tpu", "tpu"), ("tpu:0", "tpu"), (torch.device("tpu"), "tpu"),
        ({"tpu:0": "cpu"}, "cpu"), (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.tpu() if location.startswith("tpu") else storage, "tpu"),
    ):  # fmt: skip
        for weights_only in (True, False):
            file.seek(0)
            back = torch.load(file, map_location=map_location, weights_only=weights_only)
            assert back["x"].device.type == back["p"].device.type == device, map_location
            assert torch.equal(back["x"].cpu(), host) and torch.equal(back["view"].cpu(), host[1:3, ::2])
            assert back["t"].stride() == x.t().stride() and back["e"].shape == (0, 6)
            assert isinstance(back["p"], torch.nn.Parameter)
            back["x"][1, 0] = -5  # storages are shared as they were
            assert back["view"][0, 0].item() == -5 and back["t"][0, 1].item() == -5
    # From the CPU to the device.
    file = saved({"a": host, "b": host[1]}, _use_new_zipfile_serialization=zipped)
    back = torch.load(file, map_location="tpu")
    assert back["a"].is_tpu and back["a"].untyped_storage().data_ptr() == back["b"].untyped_storage().data_ptr()
    assert torch.equal(back["b"].cpu(), host[1])


def test_save_modules_and_optimizers(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(5, 3, device="tpu")).sum().backward()
    optimizer.step()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", map_location="cpu", mmap=True)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("tpu")
    other.load_state_dict(state["net"])
    again = torch.optim.AdamW(other.parameters(), lr=0.1)
    again.load_state_dict(state["optimizer"])
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert q.is_tpu and torch.equal(p.cpu(), q.cpu())
        assert again.state[q]["exp_avg"].is_tpu
    whole = torch.load(saved(net), weights_only=False)
    assert torch.equal(whole[0].weight.cpu(), net[0].weight.cpu())
    with pytest.raises(RuntimeError, match="tpu:7|deserialize"):
        torch.load(saved(torch.ones(2)), map_location="tpu:7")


def test_dlpack():
    host, x = pair(3, 4)
    y = torch.from_dlpack(x)
    assert y.device == x.device and y.data_ptr() == x.data_ptr() and torch.equal(y.cpu(), host)
    y[1] = 0
    assert x[1].sum().item() == 0
    x.add_(1)
    assert torch.equal(y.cpu(), x.cpu())
    z = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.t()))
    assert z.stride() == x.t().stride() and torch.equal(z.cpu(), x.t().cpu())
    del x
    gc.collect()
    assert y.shape == (3, 4) and (y + 1).shape == (3, 4) and z.cpu().shape == (4, 3)
    assert torch.from_dlpack(numpy.arange(3)).to("tpu").tolist() == [0, 1, 2]
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        numpy.from_dlpack(y)
    assert y.__dlpack_device__()[0] != 1


# ---- Several devices ----


def test_several_devices():
    run(
        """
        import io, copy, torch
        assert torch.tpu.device_count() == 3
        host = torch.arange(24.0).reshape(4, 6)
        a = host.to("tpu:0")
        for make in (lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x.expand(2, 4, 6), lambda x: x[:0],
                     lambda x: x[2, 3], lambda x: torch.complex(x, x).conj(), lambda x: torch.complex(x, x).conj().imag,
                     lambda x: x.view(torch.int32), lambda x: x > 3):
            b = make(a).to("tpu:2")
            assert b.device == torch.device("tpu", 2) and torch.equal(b.cpu(), make(host)), make
            c = torch.empty(make(host).shape, dtype=make(host).dtype, device="tpu:1")
            c.copy_(b)
            assert torch.equal(c.cpu(), make(host))
            c.copy_(make(a), non_blocking=True)
            assert torch.equal(c.cpu(), make(host))
        b = a.to("tpu:1")
        a.add_(1); b.mul_(2)
        assert torch.equal(a.cpu(), host + 1) and torch.equal(b.cpu(), host * 2)
        v = b[1:3, 1::2]
        v.copy_(a[:2, :3]); host2 = host * 2; host2[1:3, 1::2] = (host + 1)[:2, :3]
        assert torch.equal(b.cpu(), host2)
        b.copy_(torch.ones(6, device="tpu:2", dtype=torch.int64))       # broadcast, another dtype
        assert b.eq(1).all()
        for bad in (lambda: a + b, lambda: a.add_(b), lambda: torch.cat([a, b]), lambda: torch.mm(a, b.t()),
                    lambda: torch.add(a, a, out=b), lambda: torch.where(a > 0, a, b), lambda: a[b.long()],
                    lambda: torch.nn.functional.linear(a, b)):
            try:
                bad()
            except RuntimeError as e:
                assert "tpu:0" in str(e) and "tpu:1" in str(e), e
            else:
                raise AssertionError(bad)
        assert (a + torch.tensor(1.0)).device.index == 0
        assert (b + torch.ones((), device="cpu")).device.index == 1
        with torch.tpu.device(1):
            assert torch.ones(1, device="tpu").device.index == 1 and (a + 1).device.index == 0
        assert torch.ones(1, device="tpu").device.index == 0
        assert torch.zeros_like(b).device.index == 1 and copy.deepcopy(b).device.index == 1
        f = io.BytesIO(); torch.save({"a": a, "b": b}, f)
        for where, want in ((None, (0, 1)), ("tpu:2", (2, 2)), ({"tpu:0": "tpu:2", "tpu:1": "tpu:0"}, (2, 0))):
            f.seek(0); back = torch.load(f, map_location=where)
            assert (back["a"].device.index, back["b"].device.index) == want, where
        try:
            torch.ones(1, device="tpu:3")
        except RuntimeError as e:
            assert "3" in str(e), e
        else:
            raise AssertionError("tpu:3")
        # A net and its gradients across devices.
        w0 = torch.ones(3, 3, device="tpu:0", requires_grad=True)
        w1 = torch.ones(3, 3, device="tpu:1", requires_grad=True)
        ((w0 @ w0).to("tpu:1") @ w1).to("tpu:2").sum().backward()
        assert w0.grad.device.index == 0 and w1.grad.device.index == 1 and w1.grad.eq(9).all() and w0.grad.eq(18).all()
        """,
        TORCH_TPU_VIRTUAL_DEVICES="3",
    )


# ---- Modules, parameters, optimizers ----


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.out = torch.nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.out(self.embed(x)) * self.scale


def test_tied_weights_and_a_live_optimizer():
    torch.manual_seed(0)
    net = Tied()
    twin = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    other = torch.optim.Adam(twin.parameters(), lr=0.1)
    before = net.embed.weight
    hooked = []
    before.register_hook(lambda g: hooked.append(g.device.type))
    before.register_post_accumulate_grad_hook(lambda p: hooked.append(p.device.type))
    net.to("tpu")
    assert net.embed.weight is net.out.weight is before
    assert len(list(net.parameters())) == 1 and optimizer.param_groups[0]["params"][0] is before
    x = torch.tensor([0, 3, 1])
    for _ in range(3):
        for model, opt, data in ((net, optimizer, x.to("tpu")), (twin, other, x)):
            opt.zero_grad()
            model(data).pow(2).sum().backward()
            opt.step()
    assert hooked == ["tpu", "tpu"] * 3
    torch.testing.assert_close(net.embed.weight.detach().cpu(), twin.embed.weight.detach(), rtol=1e-4, atol=1e-5)
    net.to("cpu")
    assert net.embed.weight is net.out.weight is before and not before.is_tpu
    net.half().to("tpu").float()
    assert net.embed.weight is net.out.weight


def test_module_moves():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.LSTM(3, 2))
    net[0].weight.requires_grad_(False)
    net[0].bias.grad = torch.ones(3)
    net.to("tpu", torch.float64)
    assert all(p.is_tpu and p.dtype is torch.float64 for p in net.parameters())
    assert not net[0].weight.requires_grad and net[0].bias.grad.is_tpu
    assert net[1].num_batches_tracked.dtype is torch.int64 and net[1].running_mean.is_tpu
    assert net.tpu() is net and net.cpu() is net
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 3)
    assert empty.to_empty(device="tpu").weight.is_tpu
    with torch.device("tpu"):
        assert torch.nn.Linear(2, 3).weight.is_tpu
    with pytest.raises(NotImplementedError):
        torch.nn.Linear(2, 3, device="meta").to("tpu")
    p = torch.nn.Parameter(torch.ones(3))
    q = torch.nn.Parameter(torch.zeros(3, device="tpu"))
    torch.utils.swap_tensors(p, q)
    assert p.is_tpu and not q.is_tpu and p.sum().item() == 0
    torch.nn.utils.vector_to_parameters(
        torch.ones(6, device="tpu"), [q := torch.nn.Parameter(torch.zeros(2, 3, device="tpu"))]
    )
    assert q.sum().item() == 6


# ---- Autograd over views and writes ----


def gradients(f, *shapes):
    out = []
    for device in ("cpu", "tpu"):
        inputs = [
            (torch.arange(1.0, 1 + torch.Size(s).numel()) / 7).reshape(s).to(device).requires_grad_() for s in shapes
        ]
        result = f(*inputs)
        grads = torch.autograd.grad(result.sum(), inputs, create_graph=True, retain_graph=True, allow_unused=True)
        twice = torch.autograd.grad(
            sum(((g * g).sum() for g in grads), inputs[0].sum()),
            inputs, allow_unused=True, retain_graph=True,  # see below
        )  # fmt: skip
        out.append([None if t is None else t.detach().cpu() for t in (result, *grads, *twice)])
    for a, b in zip(*out, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


# Autograd numbers its nodes by thread, and this device's run in a thread of their own, as a GPU's: without
# retain_graph, PyTorch may free a node that CopySlices and the graph share before both have run.


def view_write(x):
    y = x * 1
    y[1:, ::2].mul_(y[:-1, 1::2].clone())
    return y**2


def rebase(x):
    y = x.clone()
    a, b = y.view(-1), y.t()
    a[3:7].mul_(2)
    b[1].add_(a[:2].sum())
    y.diagonal().exp_()
    return a.sin() * 2 + b.reshape(-1)


def copies(x):
    y = torch.zeros_like(x)
    y[0].copy_(x[1] * x[0])
    y[1:].copy_(x[:1].expand(2, 4))
    return y**3


def masks(x):
    y = x * 2
    y[y > 1] = 0
    y.masked_fill_(x < 0.2, 3)
    y[torch.tensor([0, 2], device=x.device)] *= x[0]
    return y * x


def strided(x):
    y = x * x
    return torch.as_strided(y, (2, 3), (1, 2), 1) * x.unfold(1, 3, 1)[:2, 0]


def chained(x):
    y = x + 0
    for i in range(3):
        y[i].mul_(y[(i + 1) % 3].clone())
    return y.unbind(0)[1] + y.split(2, 1)[0].sum()


@pytest.mark.parametrize("f", [view_write, rebase, copies, masks, strided, chained], ids=lambda f: f.__name__)
def test_gradients_through_views(f):
    gradients(f, (3, 4))


def test_autograd_refusals():
    for device in ("cpu", "tpu"):
        x = torch.ones(3, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            x.add_(1)
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            x[0].mul_(2)
        with torch.no_grad():
            x.add_(1)
            x[0] = 5
        assert x.tolist() == [5, 2, 2] and x.requires_grad and x.is_leaf
        y = x.exp()
        y.add_(1)  # exp saved its result
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        a, b = (x * 1).unbind(0)[:2]
        with pytest.raises(RuntimeError, match="multiple views"):
            a.add_(b)
        y = x * 2
        y.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            (x**2).sum().backward(retain_graph=False) or y.pow(2).sum().backward()
        with pytest.raises(RuntimeError, match="scalar outputs"):
            (x * 2).backward()


def test_saved_values_survive_donation():
    """A tensor saved for backward keeps its value where PyTorch doesn't check: under .data and no version."""
    for device in ("cpu", "tpu"):
        x = torch.full((256,), 2.0, device=device, requires_grad=True)
        w = torch.full((256,), 3.0, device=device, requires_grad=True)
        y = (x * w).sum()
        del x
        y.backward()
        assert w.grad.eq(2).all()
        opt = torch.optim.SGD([w], lr=1.0, momentum=0.9)
        for _ in range(3):
            opt.zero_grad(set_to_none=False)
            (w * w).sum().backward()
            opt.step()
        result = w.detach().cpu()
        if device == "cpu":
            expected = result
    assert torch.equal(result, expected)


def test_hooks():
    x = torch.ones(3, device="tpu", requires_grad=True)
    log = []
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    x.register_hook(lambda g: log.append(g.tolist()))
    x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to("tpu")):
        z = (y * y).sum()
    z.backward()
    assert log == [[80.0] * 3, [80.0] * 3] and y.grad.tolist() == [40.0] * 3
    with torch.autograd.graph.save_on_cpu(pin_memory=False):
        w = (x.exp() * x).sum()
    assert torch.autograd.grad(w, x)[0].shape == (3,)
    out = torch.utils.checkpoint.checkpoint(lambda t: (t * t).sin(), x, use_reentrant=False)
    torch.testing.assert_close(
        torch.autograd.grad(out.sum(), x)[0].cpu(), torch.full((3,), 2 * torch.cos(torch.tensor(1.0)))
    )


def test_errors_in_backward_hooks():
    x = torch.ones(3, device="tpu", requires_grad=True)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("from backward")

    with pytest.raises(ValueError, match="from backward"):
        Bad.apply(x).sum().backward()
    handle = x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (x * 2).sum().backward()
    handle.remove()
    y = x * 2
    y.register_hook(lambda g: torch.ones(5, device="tpu"))
    with pytest.raises(RuntimeError, match="size"):
        y.sum().backward()
    y = x * 2
    y.register_hook(lambda g: g @ g[:2])  # a device error inside the engine's thread
    with pytest.raises(RuntimeError):
        y.sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_gradcheck():
    x = torch.randn(3, 3, dtype=torch.float64, device="tpu", requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, device="tpu", requires_grad=True)

    def f(x, w):
        y = x * 1
        y[1:] = (x @ w).tanh()[:2]
        return y.t().softmax(0) * w.exp()

    assert gradcheck(f, (x, w)) and gradgradcheck(f, (x, w))


def test_functorch():
    from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

    host = torch.arange(1.0, 7).reshape(2, 3) / 5
    for f in (
        lambda x: vmap(lambda r: r.sin() * r.sum())(x),
        lambda x: vmap(torch.dot)(x, x),
        lambda x: vmap(lambda r: r[:2].clone().mul_(2), in_dims=1)(x),
        lambda x: grad(lambda t: (t.exp() * t).sum())(x),
        lambda x: vmap(grad(lambda r: (r**3).sum()))(x),
        lambda x: jvp(lambda t: t.tanh() @ t.t(), (x,), (torch.ones_like(x),))[1],
        lambda x: vjp(lambda t: t.t().reshape(-1).cumsum(0), x)[1](torch.ones(6, device=x.device))[0],
        lambda x: jacrev(lambda t: t.pow(2).sum(1))(x),
        lambda x: hessian(lambda t: (t**3).sum())(x),
        lambda x: vmap(lambda i: x[i], randomness="error")(torch.arange(2, device=x.device)),
        lambda x: vmap(lambda r: torch.where(r > 0.5, r, -r))(x),
    ):
        torch.testing.assert_close(f(host.to("tpu")).cpu(), f(host), rtol=1e-5, atol=1e-6)
    net = torch.nn.Linear(3, 2).to("tpu")
    out = functional_call(net, {"weight": torch.ones(2, 3, device="tpu")}, (host.to("tpu"),))
    assert out.shape == (2, 2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(host.to("tpu"), torch.ones(2, 3, device="tpu"))
        tangent = torch.autograd.forward_ad.unpack_dual(dual * dual).tangent
        torch.testing.assert_close(tangent.cpu(), 2 * host)


def test_weak_references_and_memory():
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18, device="tpu") + 1
    seen, view = weakref.ref(x), x[10:]
    storage = weakref.ref(x.untyped_storage())
    del x, storage
    assert seen() is None or seen() is view._base
    assert torch.tpu.memory_allocated() - before >= 1 << 20
    del view
    gc.collect()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= before + 64


def test_in_place_reuses_memory():
    x = torch.ones(1 << 20, device="tpu") + 0
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    start = torch.tpu.memory_allocated()
    for _ in range(10):
        x.add_(1)
        x[100:200].mul_(2)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= start + 64  # numbers are kept
    assert torch.tpu.max_memory_allocated() <= start + (4 << 20) + 4096


def test_foreach_bumps_versions():
    x, y = torch.ones(4, device="tpu", requires_grad=True), torch.ones(4, device="tpu")
    z = (x * x).sum()
    before = x._version, y._version
    with torch.no_grad():
        torch._foreach_add_([x, y], 1)
    assert (x._version, y._version) == (before[0] + 1, before[1] + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.int64])
def test_bytes_left_over(dtype):
    """A storage whose size is no multiple of the element's."""
    for device in ("cpu", "tpu"):
        raw = torch.arange(27, dtype=torch.uint8, device=device)
        count = 27 // dtype.itemsize
        x = torch.empty(0, dtype=dtype, device=device).set_(raw.untyped_storage(), 0, (count,), (1,))
        results = [x.clone(), x.view(torch.uint8).clone(), (x == x[0])]
        x.fill_(1)
        results.append(raw.clone())
        x[1:].copy_(torch.arange(count - 1, device=device).to(dtype))
        results.append(raw.clone())
        torch.empty(0, dtype=dtype, device=device).set_(raw.untyped_storage(), 1, (count - 1,), (1,)).zero_()
        results.append(raw.clone())
        raw[-3:] = 9
        raw.untyped_storage().resize_(29)
        results += [x.clone(), raw.clone()]
        if device == "cpu":
            expected = results
    for a, b in zip(expected, results, strict=True):
        assert torch.equal(a.view(torch.uint8), b.cpu().view(torch.uint8))


def test_writes_through_every_kind_of_operator():
    """In-place and out= forms of indexing, list and matrix operators on views, against the CPU."""
    for device in ("cpu", "tpu"):
        x = torch.arange(24.0, device=device).reshape(4, 6)
        v = x.t()[1:4]
        v.index_put_((torch.tensor([0, 0, 2], device=device),), torch.ones(3, 4, device=device), accumulate=True)
        v.scatter_add_(1, torch.zeros(3, 4, dtype=torch.long, device=device), torch.ones(3, 4, device=device))
        v.index_add_(0, torch.tensor([1], device=device), torch.ones(1, 4, device=device))
        v.masked_scatter_(v > 20, torch.arange(100.0, 124, device=device))
        v.index_copy_(1, torch.tensor([3], device=device), torch.full((3, 1), 7.0, device=device))
        y = torch.arange(36.0, device=device).reshape(6, 6)
        torch.cat([y[:2].clone(), y[4:5].clone()], out=y[1:4])
        torch.sum(y.clone(), 1, out=y[:, 0])
        torch.sort(y.clone(), 1, out=(y.t(), torch.empty(6, 6, dtype=torch.long, device=device)))
        torch.mm(y.clone() % 7, y.clone() % 5, out=y.t())
        z = torch.arange(12.0, device=device)
        torch._foreach_mul_(z.split([3, 4, 5]), [1.0, 2.0, 3.0])
        torch._foreach_add_(list(z.view(3, 4).unbind(1)), 1)
        torch._foreach_copy_(list(z.view(2, 6)[:, :2].unbind(0)), [torch.zeros(2, device=device)] * 2)
        w = torch.arange(6.0, device=device).reshape(2, 3)
        w.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
        w.as_strided_((2, 2), (1, 2), 1).add_(1)
        w.swapdims_(0, 1)
        results = [x, y, z, w]
        if device == "cpu":
            expected = results
    for a, b in zip(expected, results, strict=True):
        assert torch.equal(a, b.cpu()) and a.stride() == b.stride()
