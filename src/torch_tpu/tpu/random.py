# SPDX-License-Identifier: Apache-2.0
"""Random state. A generator's state is 16 bytes: seed and offset. Seeding opens no device."""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from torch_tpu import _C
from torch_tpu.tpu._device import Device, device_count, index_of

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _unsigned(seed: int) -> int:
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed must lie between -2**63 and 2**64 - 1, got {seed}")
    return seed % 2**64


# Dynamo stops before a generator's state, which lives outside of graphs, and goes on after it.
_outside = functools.partial(torch._disable_dynamo, recursive=True)


@_outside
def get_rng_state(device: Device = "tpu") -> Tensor:
    return _C.default_generator(index_of(device)).get_state()


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(i) for i in range(device_count())]


@_outside
def set_rng_state(new_state: Tensor, device: Device = "tpu") -> None:
    _C.default_generator(index_of(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


@_outside
def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _C.default_generator(_C.current_device()).manual_seed(_unsigned(seed))


@_outside
def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator, as torch.manual_seed does."""
    _C.seed_all(_unsigned(seed))


@_outside
def seed() -> int:
    """Seeds the current device's generator with a random number, and returns that."""
    return _C.default_generator(_C.current_device()).seed()


@_outside
def seed_all() -> int:
    """Seeds every device's generator with one random number, and returns that."""
    value = torch.Generator().seed()
    _C.seed_all(value)
    return value


@_outside
def initial_seed() -> int:
    return _C.default_generator(_C.current_device()).initial_seed()
