"""The default random number generators of the devices.

The state of a generator is 16 `bytes`, the content of PyTorch's tensor of a state: the seed and the
offset, 64 bits each, little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsBytes, SupportsIndex

from . import _core
from .devices import Device, index_of
from .errors import InvalidArgumentError

__all__ = [
    "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "set_rng_state", "set_rng_state_all",
]

State = bytes | bytearray | memoryview | SupportsBytes


def _seed_bits(seed: SupportsIndex) -> int:
    """A seed as 64 bits; a negative one in two's complement."""
    number = int(seed)
    if not -(1 << 63) <= number < 1 << 64:
        raise InvalidArgumentError(f"the seed {number} does not fit into 64 bits")
    return number & 0xFFFF_FFFF_FFFF_FFFF


def manual_seed(seed: SupportsIndex) -> None:
    """Seeds the generator of the current device.

    >>> tcuda.manual_seed(42); tcuda.initial_seed()
    42
    """
    _core.random_manual_seed(-1, _seed_bits(seed))


def manual_seed_all(seed: SupportsIndex) -> None:
    """Seeds the generators of all devices."""
    _core.random_manual_seed_all(_seed_bits(seed))


def seed() -> None:
    """Seeds the generator of the current device with a random number."""
    _core.random_seed(-1)


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    _core.random_seed_all()


def initial_seed() -> int:
    """The seed of the generator of the current device."""
    return _core.random_initial_seed(-1)


def get_rng_state(device: Device = "cuda") -> bytes:
    """The state of the generator of a device."""
    return _core.random_state_get(index_of(device))


def get_rng_state_all() -> list[bytes]:
    """The states of the generators of all devices."""
    return _core.random_state_get_all()


def set_rng_state(new_state: State, device: Device = "cuda") -> None:
    """Sets the state of the generator of a device."""
    _core.random_state_set(index_of(device), bytes(new_state))


def set_rng_state_all(new_states: Iterable[State]) -> None:
    """Sets the states of the generators of all devices."""
    _core.random_state_set_all(b"".join(bytes(state) for state in new_states))
