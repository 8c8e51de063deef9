# SPDX-License-Identifier: Apache-2.0
"""Views and writes through views, against CPU PyTorch: every geometry that as_strided can make."""

import itertools

import hypothesis.strategies as st
import program_counts
import pytest
import torch
from hypothesis import HealthCheck, given, settings

# ---- Every small geometry ----


def small_geometries():
    """(numel, sizes, strides, offset) of all views of rank 0 to 2 over a base of 6, and some of rank 3."""
    base = 6
    for rank in range(3):
        for sizes in itertools.product(range(4), repeat=rank):
            for strides in itertools.product(range(5), repeat=rank):
                for offset in (0, 1, 2, 5):
                    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
                    if 0 in sizes or last < base:
                        yield base, sizes, strides, offset
    for sizes in itertools.product((1, 2, 3), repeat=3):
        for strides in itertools.permutations((1, 2, 4, 6), 3):
            for offset in (0, 3):
                last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
                if last < 24:
                    yield 24, sizes, strides, offset


def overlaps(sizes, strides):
    seen = set()
    for index in itertools.product(*map(range, sizes)):
        place = sum(i * s for i, s in zip(index, strides, strict=True))
        if place in seen:
            return True
        seen.add(place)
    return False


def test_every_small_geometry():
    """A program each would take minutes: geometries are sampled evenly, more than 200 of them."""
    everything = list(small_geometries())
    for numel, sizes, strides, offset in everything[:: len(everything) // 200]:
        what = (numel, sizes, strides, offset)
        host = torch.arange(numel, dtype=torch.float32)
        tpu = host.to("tpu")
        read = torch.as_strided(host, sizes, strides, offset)
        view = torch.as_strided(tpu, sizes, strides, offset)
        assert (view.shape, view.stride(), view.storage_offset()) == (
            read.shape,
            read.stride(),
            read.storage_offset(),
        ), what
        assert torch.equal((view + 1).cpu(), read + 1), what
        assert torch.equal(view.cpu(), read), what
        if overlaps(sizes, strides):
            continue
        update = torch.arange(100, 100 + read.numel(), dtype=torch.float32).reshape(sizes)
        read.copy_(update)
        view.copy_(update.to("tpu"))
        assert torch.equal(tpu.cpu(), host), what
        read.mul_(2)
        view.mul_(2)
        assert torch.equal(tpu.cpu(), host), what


# ---- Chosen views, read and written ----

VIEWS = {
    "itself": lambda x: x,
    "row": lambda x: x[1],
    "last row": lambda x: x[-1],
    "column": lambda x: x[:, 2],
    "odd end": lambda x: x[:, 1:6:2],
    "step past the end": lambda x: x[::3, ::4],
    "both steps": lambda x: x[1::2, 1::3],
    "empty slice": lambda x: x[2:2],
    "transposed": lambda x: x.t(),
    "transposed slice": lambda x: x.t()[1:4, ::2],
    "diagonal": lambda x: x.diagonal(),
    "diagonal above": lambda x: x.diagonal(2),
    "diagonal below": lambda x: x.diagonal(-2),
    "empty diagonal": lambda x: x.diagonal(7),
    "unfold apart": lambda x: x.unfold(1, 2, 3),
    "reshaped": lambda x: x.view(7, 5),
    "flat": lambda x: x.view(-1),
    "flat window": lambda x: x.view(-1)[3:17],
    "flat steps": lambda x: x.view(-1)[1::4],
    "unflattened": lambda x: x.unflatten(1, (7, 1)),
    "squeezed": lambda x: x[:, 3:4].squeeze(1),
    "unsqueezed": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "select of narrow": lambda x: x.narrow(0, 1, 3).select(1, 4),
    "split": lambda x: x.split(3, 1)[1],
    "chunk": lambda x: x.chunk(3, 1)[2],
    "unbind": lambda x: x.unbind(1)[3],
    "swapped and cut": lambda x: x.unsqueeze(0).permute(2, 0, 1)[2:5, :, 1:],
    "not nesting": lambda x: torch.as_strided(x, (3, 2), (5, 3), 1),
    "backwards nest": lambda x: torch.as_strided(x, (2, 3), (1, 2), 4),
    "gap at the end": lambda x: torch.as_strided(x, (3, 3), (10, 3), 2),
    "one element": lambda x: torch.as_strided(x, (1, 1), (99, 77), 34),
    "no dimensions": lambda x: x[2, 3],
}

OVERLAPPING = {
    "expanded": lambda x: x[:1].expand(4, 7),
    "expanded new": lambda x: x.expand(2, 5, 7),
    "expanded element": lambda x: x[1, 1].expand(3, 3),
    "windows": lambda x: x.unfold(1, 3, 1),
    "windows both": lambda x: x.unfold(0, 2, 1).unfold(1, 3, 2),
    "strided windows": lambda x: torch.as_strided(x, (4, 5), (3, 2), 1),
    "zero stride inside": lambda x: torch.as_strided(x, (2, 3, 4), (7, 0, 1), 3),
    "same strides": lambda x: torch.as_strided(x, (3, 3), (2, 2), 0),
}


def base():
    return torch.arange(35, dtype=torch.float32).reshape(5, 7)


def write_copy(v):
    v.copy_(torch.arange(1000, 1000 + v.numel(), dtype=v.dtype).reshape(v.shape))


def write_add(v):
    v.add_(torch.arange(v.numel(), dtype=v.dtype, device=v.device).reshape(v.shape), alpha=3)


def write_fill(v):
    v.fill_(-1)


def write_zero(v):
    v.zero_()


def write_index(v):
    v[...] = 7


def write_itself(v):
    v.copy_(v * 2 + 1)


def write_out(v):
    torch.mul(v, 3, out=v)


def write_sort(v):
    if v.dim():
        v.copy_(v.sort(-1, descending=True).values)


def write_masked(v):
    v.masked_fill_(v > 10, 0.5)


WRITES = [
    write_copy, write_add, write_fill, write_zero, write_index, write_itself, write_out, write_sort, write_masked
]  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_read_and_write(name):
    make = VIEWS[name]
    for write in WRITES:
        host, tpu = base(), base().to("tpu")
        there, here = make(tpu), make(host)
        assert (there.shape, there.stride(), there.storage_offset()) == (
            here.shape, here.stride(), here.storage_offset()
        )  # fmt: skip
        assert there.is_contiguous() == here.is_contiguous()
        assert there.untyped_storage().data_ptr() == tpu.untyped_storage().data_ptr()
        before, before_host = tpu._version, host._version
        kept = tpu + 0  # a value computed before the write must not change with it
        write(there)
        write(here)
        assert torch.equal(tpu.cpu(), host), write.__name__
        assert torch.equal(there.cpu(), here), write.__name__
        assert torch.equal(kept.cpu(), base()), write.__name__
        assert tpu._version - before == host._version - before_host, write.__name__
        assert there._version == tpu._version
        # And through the base, seen by the view.
        tpu.add_(1)
        host.add_(1)
        assert torch.equal(there.cpu(), here), write.__name__


@pytest.mark.parametrize("name", OVERLAPPING)
def test_overlapping(name):
    make = OVERLAPPING[name]
    host, tpu = base(), base().to("tpu")
    here, there = make(host), make(tpu)
    assert (there.shape, there.stride(), there.storage_offset()) == (here.shape, here.stride(), here.storage_offset())
    assert torch.equal((there * 2).cpu(), here * 2)
    assert torch.equal(there.cpu(), here)
    assert torch.equal(there.sum(0).cpu(), here.sum(0))
    if name.startswith("expanded") or name == "zero stride inside":
        for v in (here, there):
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                v.add_(1)
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                v.copy_(torch.zeros(v.shape, device=v.device))
        assert torch.equal(tpu.cpu(), base())
    else:  # neither looks further: one of the elements written to a place stays there
        there.copy_(torch.full(there.shape, 5.0))
        here.copy_(torch.full(here.shape, 5.0))
        assert torch.equal(tpu.cpu(), host)
        numbers = torch.arange(100.0, 100 + there.numel()).reshape(there.shape)
        there.copy_(numbers)
        assert set(there.cpu().flatten().tolist()) <= set(numbers.flatten().tolist())
        assert torch.equal(
            there.cpu(), torch.as_strided(tpu.cpu(), there.shape, there.stride(), there.storage_offset())
        )
        tpu.copy_(host)
    tpu[1:3] += 100
    host[1:3] += 100
    assert torch.equal(there.cpu(), here)
    assert torch.equal(there.contiguous().cpu(), here)


def test_overlap_between_arguments():
    """What is written to may be an input, but no part of one; offsets are judged at each call."""
    for device in ("cpu", "tpu"):
        x = torch.arange(10.0, device=device)
        for write in (
            lambda x: torch.add(x[:-1], 1, out=x[1:]),
            lambda x: x[1:].mul_(x[:-1]),
            lambda x: x[:-1].copy_(x[1:]),
            lambda x: x[2:7].add_(x[:5]),
            lambda x: torch.gather(x, 0, torch.arange(10, device=x.device), out=x),
            lambda x: torch.cat([x[:5], x[2:7]], out=x),
            lambda x: x[:4].index_add_(0, torch.tensor([1], device=x.device), x[3:4]),
        ):
            with pytest.raises(RuntimeError, match="unsupported operation"):
                write(x)  # noqa: B023
        assert x.tolist() == list(range(10))
        x[5:].add_(x[:5])
        torch.add(x, x, out=x)
        assert x.tolist() == [0, 2, 4, 6, 8, 10, 14, 18, 22, 26]


def test_memmove_between_overlapping_slices():
    x = torch.arange(10.0, device="tpu")
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: torch.as_strided(x, (2, 2), (-1, 1)),
        lambda x: torch.as_strided(x, (2, 2), (1, 1), -1),
        lambda x: torch.as_strided(x, (-2, 2), (1, 1)),
        lambda x: torch.as_strided(x, (2,), (1, 1)),
        lambda x: torch.as_strided(x, (40,), (1,)),
        lambda x: torch.as_strided(x, (2,), (1,), 34),
        lambda x: torch.as_strided(x, (1 << 40,), (1 << 40,)),
        lambda x: torch.as_strided(x, (1,), (1,), 1 << 62),
        lambda x: x.view(4, 9),
        lambda x: x.t().view(-1),
        lambda x: x.view(-1, -1),
        lambda x: x.view(-2, 5),
        lambda x: x[5],
        lambda x: x[-6],
        lambda x: x.select(2, 0),
        lambda x: x.narrow(0, 4, 2),
        lambda x: x.narrow(0, 0, -1),
        lambda x: x[::-1],
        lambda x: x[:, ::0],
        lambda x: x.unfold(0, 6, 1),
        lambda x: x.unfold(0, 2, 0),
        lambda x: x.expand(3, 7),
        lambda x: x.expand(7),
        lambda x: x.permute(0, 0),
        lambda x: x.permute(0),
        lambda x: x.transpose(0, 2),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: x.squeeze(3),
        lambda x: x.unsqueeze(4),
        lambda x: x.split(-1),
        lambda x: x.split([1, 1]),
        lambda x: x.chunk(0),
        lambda x: x[0].t()[:, 0],
        lambda x: x.view(torch.complex64),
        lambda x: x.t().view(torch.float64),
        lambda x: x[:, 1:].view(torch.float64),
        lambda x: x[0, 0].view(torch.uint8),
        lambda x: torch.view_as_complex(x),
        lambda x: torch.view_as_real(x),
        lambda x: x.unflatten(1, (2, 3)),
        lambda x: x.flatten(1, 0),
        lambda x: x.movedim(0, 5),
    ],
)
def test_bad_views(bad):
    """The same exception class as on the CPU, at the call, and nothing has changed."""
    errors = []
    for device in ("cpu", "tpu"):
        x = base().to(device)
        with pytest.raises(Exception) as e:
            bad(x)
        errors.append(e.value)
        assert torch.equal(x.cpu(), base())
    assert type(errors[0]) is type(errors[1]), errors


# ---- Random sequences of views, reads and writes ----

STEPS = {
    "select": lambda x, a, b: x.select(a % x.dim(), b % x.size(a % x.dim())) if x.dim() and x.numel() else x,
    "slice": lambda x, a, b: x.narrow(a % x.dim(), 0, x.size(a % x.dim()))[b % 2 :: 1 + b % 3] if x.dim() else x,
    "narrow": lambda x, a, b: (
        x.narrow(a % x.dim(), b % x.size(a % x.dim()), 1 + (a + b) % (x.size(a % x.dim()) - b % x.size(a % x.dim())))
        if x.dim() and x.numel()
        else x
    ),
    "transpose": lambda x, a, b: x.transpose(a % x.dim(), b % x.dim()) if x.dim() else x,
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.dim() + 1)) if x.dim() < 5 else x,
    "squeeze": lambda x, a, b: x.squeeze(),
    "diagonal": lambda x, a, b: x.diagonal(b % 3 - 1) if x.dim() >= 2 else x,
    "unfold": lambda x, a, b: (
        x.unfold(a % x.dim(), 1 + b % x.size(a % x.dim()), 1 + b % x.size(a % x.dim())) if x.dim() and x.numel() else x
    ),
    "flatten": lambda x, a, b: x.view(-1) if x.is_contiguous() else x,
    "strided": lambda x, a, b: x[(slice(None),) * (max(x.dim(), 1) - 1) + (slice(b % 2, None, 2),)] if x.dim() else x,
}


def random_write(v, kind, number):
    if kind == "copy_":
        v.copy_(torch.arange(v.numel(), dtype=v.dtype, device=v.device).reshape(v.shape) - number)
    elif kind == "copy from cpu":
        v.copy_(torch.arange(v.numel(), dtype=v.dtype).reshape(v.shape) + number)
    elif kind == "add_":
        v.add_(number)
    elif kind == "fill_":
        v.fill_(number)
    elif kind == "setitem":
        v[...] = number
    elif kind == "mul_ itself":
        v.mul_(v)
    elif kind == "mask":
        v[v > number] = 0
    elif kind == "index" and v.dim() and v.size(0):
        v[torch.tensor([0], device=v.device)] = number


WRITE_KINDS = ["copy_", "copy from cpu", "add_", "fill_", "setitem", "mul_ itself", "mask", "index"]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(
    shape=st.sampled_from([(4, 6), (24,), (2, 3, 4)]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(sorted(STEPS)),
            st.integers(0, 3),
            st.integers(0, 5),
            st.sampled_from([*WRITE_KINDS, "none", "back", "back"]),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_random_sequences(shape, steps):
    host = torch.arange(24, dtype=torch.float32).reshape(shape)
    tpu = host.to("tpu")
    here, there = host, tpu
    for name, a, b, write in steps:
        if write == "back":  # begin again at the base
            here, there = host, tpu
        here, there = STEPS[name](here, a, b), STEPS[name](there, a, b)
        assert (there.shape, there.stride(), there.storage_offset()) == (
            here.shape, here.stride(), here.storage_offset()
        )  # fmt: skip
        if write in WRITE_KINDS:
            random_write(here, write, b)
            random_write(there, write, b)
            here.clamp_(-1000, 1000)
            there.clamp_(-1000, 1000)
        assert torch.equal(there.cpu(), here)
        assert torch.equal(tpu.cpu(), host)
        assert tpu._version == host._version


# ---- Other element types over the same bytes ----

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("old", DTYPES, ids=str)
@pytest.mark.parametrize("new", DTYPES, ids=str)
def test_view_dtype(old, new):
    if old is torch.complex64 and new is torch.bool or new is torch.bool and old.itemsize > 1:
        pattern = torch.tensor([0, 1] * 24, dtype=torch.uint8)  # only bytes that a bool may have
    else:
        pattern = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0] * 6, dtype=torch.uint8)
    host = pattern.view(old).clone()
    tpu = host.to("tpu")
    here, there = host.view(new), tpu.view(new)
    assert there.dtype is new and there.shape == here.shape and there.stride() == here.stride()
    assert there.untyped_storage().data_ptr() == tpu.untyped_storage().data_ptr()
    assert torch.equal(there.cpu().view(torch.uint8), here.view(torch.uint8))
    here[1:] = here[:1].clone()
    there[1:] = there[:1].clone()
    assert torch.equal(tpu.cpu().view(torch.uint8), host.view(torch.uint8))
    assert there._version == tpu._version
    host.fill_(1)
    tpu.fill_(1)
    assert torch.equal(there.cpu().view(torch.uint8), here.view(torch.uint8))


def test_view_dtype_of_views():
    host = torch.arange(48, dtype=torch.float32).reshape(4, 12)
    tpu = host.to("tpu")

    def both(make):
        return make(host), make(tpu)

    for make in (
        lambda x: x[1:3].view(torch.int16),
        lambda x: x[:, 2:6].view(torch.float64),
        lambda x: x[::2, 4:8].view(torch.uint8)[:, 3::5],
        lambda x: x.t().view(torch.int32),
        lambda x: x[1].view(torch.complex64),
        lambda x: x[1].view(torch.complex64)[::2].real,
        lambda x: x.view(torch.int64)[2, 1:4].view(torch.int32),
    ):
        here, there = both(make)
        assert (there.shape, there.stride(), there.storage_offset()) == (
            here.shape, here.stride(), here.storage_offset()
        )  # fmt: skip
        assert torch.equal(there.cpu(), here)
        here.copy_(here.roll(1, 0))
        there.copy_(there.roll(1, 0))
        assert torch.equal(tpu.cpu().view(torch.int32), host.view(torch.int32))


def test_complex_views():
    host = torch.arange(24, dtype=torch.float32).reshape(3, 4, 2)
    tpu = host.to("tpu")
    here, there = torch.view_as_complex(host), torch.view_as_complex(tpu)
    assert there.dtype is torch.complex64 and torch.equal(there.cpu(), here)
    for write in (
        lambda c: c[1].mul_(1j),
        lambda c: c.real.fill_(4),
        lambda c: c[:, ::2].imag.add_(1),
        lambda c: torch.view_as_real(c)[2, :, 1].mul_(3),
        lambda c: c.conj()[0].copy_(torch.tensor(1 + 2j)),
        lambda c: c.t().conj().imag.add_(1),
        lambda c: c.conj().mul_(2 + 1j),
        lambda c: torch.add(c.conj()[1], 1, out=c[2]),
    ):
        write(here)
        write(there)
        assert torch.equal(there.cpu(), here)
        assert torch.equal(tpu.cpu(), host)
        assert there._version == here._version


def test_conj_and_neg_bits():
    host = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1).reshape(2, 3)
    tpu = host.to("tpu")
    conj, neg = tpu.conj(), tpu.conj().imag
    assert conj.is_conj() and neg.is_neg()
    assert conj.untyped_storage().data_ptr() == tpu.untyped_storage().data_ptr()
    assert torch.equal(conj.cpu(), host.conj()) and torch.equal(neg.cpu(), host.conj().imag)
    assert torch.equal((conj + 1).cpu(), host.conj() + 1)
    assert torch.equal((neg * 2).cpu(), host.conj().imag * 2)
    assert torch.equal(conj.resolve_conj().cpu(), host.conj().resolve_conj())
    assert not conj.resolve_conj().is_conj() and not neg.resolve_neg().is_neg()
    assert torch.equal((conj @ tpu.t()).cpu(), host.conj() @ host.t())
    assert torch.equal(tpu.mH.cpu(), host.mH)
    assert torch.equal(conj.to("tpu").clone().cpu(), host.conj())
    clone = conj.clone()
    clone.zero_()
    assert torch.equal(tpu.cpu(), host)
    neg.copy_(torch.ones(2, 3))
    host.conj().imag.copy_(torch.ones(2, 3))
    assert torch.equal(tpu.cpu(), host)
    neg.add_(5)
    host.conj().imag.add_(5)
    assert torch.equal(tpu.cpu(), host)
    conj[0] = 1 + 1j
    host.conj()[0] = 1 + 1j
    assert torch.equal(tpu.cpu(), host)
    # Host tensors with the bits, to the device and from it.
    assert torch.equal(host.conj().to("tpu").cpu(), host.conj())
    assert torch.equal(host.conj().imag.to("tpu").cpu(), host.conj().imag)
    target = torch.zeros(2, 3, dtype=torch.complex64)
    target.conj().copy_(tpu)
    assert torch.equal(target, host.conj())
    target.copy_(tpu.conj())
    assert torch.equal(target, host.conj())


# ---- One program for views that differ in the offset ----


def test_offsets_share_a_program():
    x = torch.arange(64.0, device="tpu").reshape(8, 8)
    x[1, 1:5].add_(1)
    x[2] = 3
    before = program_counts.needed()
    for i in range(1, 7):
        x[i, 2:6].add_(1)
        x[i] = 3
    assert program_counts.needed() == before
