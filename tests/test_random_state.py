# SPDX-License-Identifier: Apache-2.0
"""Generators: seeds, offsets, saved states."""

import pickle

import pytest
import torch
from subprocess_run import run


def test_generator():
    generator = torch.Generator("tpu")
    assert generator.device == torch.device("tpu:0")
    assert generator.initial_seed() == torch.Generator().initial_seed()
    generator.manual_seed(2**64 - 1)
    assert generator.initial_seed() == 2**64 - 1
    assert generator.seed() == generator.initial_seed()
    generator.manual_seed(5)
    generator.set_offset(12)
    assert generator.get_offset() == 12
    state = generator.get_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.shape == (16,)
    assert state.view(torch.int64).tolist() == [5, 12]
    other = torch.Generator("tpu")
    other.set_state(state)
    assert other.initial_seed() == 5 and other.get_offset() == 12
    copied = generator.clone_state()
    generator.manual_seed(6)
    assert copied.initial_seed() == 5 and copied.get_offset() == 12
    assert generator.get_offset() == 0
    assert pickle.loads(pickle.dumps(other)).initial_seed() == 5


@pytest.mark.parametrize(
    "state, message",
    [
        (torch.zeros(8, dtype=torch.uint8), "16 bytes"),
        (torch.zeros(5056, dtype=torch.uint8), "16 bytes"),
        (torch.zeros(16), "ByteTensor"),
        (torch.zeros(32, dtype=torch.uint8)[::2], "contiguous"),
    ],
)
def test_wrong_rng_state(state, message):
    with pytest.raises(TypeError, match=message):
        torch.Generator("tpu").set_state(state)
    with pytest.raises(TypeError, match=message):
        torch.tpu.set_rng_state(state)


def test_default_generator():
    torch.tpu.manual_seed(3)
    assert torch.tpu.initial_seed() == 3
    assert torch.tpu.default_generators[0] is torch.tpu.default_generators[0]
    assert torch.tpu.default_generators[0].initial_seed() == 3
    torch.manual_seed(4)
    assert torch.tpu.initial_seed() == 4
    torch.tpu.manual_seed_all(-1)
    assert torch.tpu.initial_seed() == 2**64 - 1
    assert torch.tpu.seed() == torch.tpu.initial_seed()
    assert torch.tpu.seed_all() == torch.tpu.initial_seed()
    with pytest.raises(ValueError, match="a seed must lie between"):
        torch.tpu.manual_seed(2**64)


def test_seeding_opens_no_device():
    code = """
        import torch
        torch.manual_seed(42)
        assert not torch.tpu.is_initialized()
        assert torch.tpu.default_generators[0].initial_seed() == 42
    """
    run(code)


def test_random_numbers_follow_the_state():
    torch.manual_seed(0)
    a, b = torch.rand(100, device="tpu").cpu(), torch.rand(100, device="tpu").cpu()
    assert not torch.equal(a, b) and 0 <= a.min() and a.max() < 1
    torch.manual_seed(0)
    assert torch.equal(torch.rand(100, device="tpu").cpu(), a)
    state = torch.tpu.get_rng_state()
    assert torch.equal(torch.rand(100, device="tpu").cpu(), b)
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="tpu").cpu(), b)
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(100, device="tpu")
    torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    after = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(7, device="tpu")
    assert torch.equal(torch.tpu.get_rng_state(), after)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="tpu", generator=torch.Generator())
