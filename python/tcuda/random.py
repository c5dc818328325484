"""Random number generators, the default ones of the devices and others, and arrays of numbers.

The state of a generator is 16 `bytes`, the content of PyTorch's tensor of a state: the seed and the
offset, 64 bits each, little-endian.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, SupportsBytes, SupportsIndex, TypeVar

from . import _core, devices
from .arrays import ArrayLike, asarray
from .devices import Device, index_of
from .errors import InvalidArgumentError
from .handles import Owner

__all__ = [
    "Generator", "bernoulli_", "cauchy_", "exponential_", "geometric_", "get_rng_state",
    "get_rng_state_all", "initial_seed", "log_normal_", "manual_seed", "manual_seed_all", "normal_",
    "random_", "seed", "seed_all", "set_rng_state", "set_rng_state_all", "uniform_",
]

State = bytes | bytearray | memoryview | SupportsBytes
_Filled = TypeVar("_Filled", bound=ArrayLike)


def _seed_bits(seed: SupportsIndex) -> int:
    """A seed as 64 bits; a negative one in two's complement."""
    number = int(seed)
    if not -(1 << 63) <= number < 1 << 64:
        raise InvalidArgumentError(f"the seed {number} does not fit into 64 bits")
    return number & 0xFFFF_FFFF_FFFF_FFFF


def _state_bytes(state: State) -> bytes:
    """The 16 bytes of a state; 8 are a seed with the offset 0."""
    if isinstance(state, int):  # bytes() would make that many zeros
        raise TypeError("a state is bytes, not a number: a seed is for manual_seed")
    content = bytes(state)
    if len(content) not in (8, 16):
        raise InvalidArgumentError(f"a state has 8 or 16 bytes, not {len(content)}")
    return content.ljust(16, b"\0")


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
    _core.random_state_set(index_of(device), _state_bytes(new_state))


def set_rng_state_all(new_states: Iterable[State]) -> None:
    """Sets the states of the generators of all devices."""
    _core.random_state_set_all(b"".join(map(_state_bytes, new_states)))


class Generator(Owner):
    """A generator of a device, with the methods of torch.Generator.

    >>> tcuda.Generator(0).initial_seed()
    67280421310721
    """

    __slots__ = ("_device",)
    _destroy = _core.generator_destroy
    _device: devices.device

    def __init__(self, device: Device = None) -> None:
        self._device = devices.device(device)
        self._handle = _core.generator_create(self._device.index)

    @property
    def device(self) -> devices.device:
        """The device of the generator."""
        return self._device

    def manual_seed(self, seed: SupportsIndex) -> Generator:
        """Seeds the generator and returns it."""
        _core.generator_seed_set(self._handle, _seed_bits(seed))
        return self

    def seed(self) -> int:
        """Seeds the generator with a random number of 53 bits, and returns that."""
        seed = int.from_bytes(os.urandom(7), "little") >> 3
        _core.generator_seed_set(self._handle, seed)
        return seed

    def initial_seed(self) -> int:
        """The seed."""
        return _core.generator_seed_get(self._handle)

    def get_offset(self) -> int:
        """The number of 32-bit words that each thread of kernels has drawn."""
        return _core.generator_offset_get(self._handle)

    def set_offset(self, offset: int) -> None:
        """Sets the offset, a multiple of 4."""
        _core.generator_offset_set(self._handle, offset)

    def get_state(self) -> bytes:
        """Seed and offset."""
        return _core.generator_state_get(self._handle)

    def set_state(self, new_state: State) -> None:
        """Sets seed and offset."""
        _core.generator_state_set(self._handle, _state_bytes(new_state))


def _default_generators() -> tuple[Generator, ...]:
    """The default generators of the devices; `tcuda.default_generators` is their tuple."""
    generators = []
    for index in range(_core.device_count()):
        generator = Generator._owning(_core.generator_default(index))
        generator._device = devices.device(index)
        generators.append(generator)
    return tuple(generators)


def _handle(generator: Generator | None) -> int | None:
    """The handle of a generator; None for the default one."""
    return None if generator is None else generator._handle


def uniform_(
    tensor: _Filled, start: float = 0.0, end: float = 1.0, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with numbers that are uniform in [start, end), and returns it. (+)

    This and the next functions are methods of torch.Tensor, and draw the same numbers. The array is
    an `Array` or one of another library. Work is queued on the current stream of its device.

    >>> array = tcuda.uniform_(tcuda.empty(100))
    >>> tcuda.get_rng_state()[8:]  # the offset has grown
    b'\\x04\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    array = asarray(tensor)
    _core.random_uniform(array._handle, start, end, _handle(generator), None)
    return tensor


def normal_(
    tensor: _Filled, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with normal numbers. (+)"""
    array = asarray(tensor)
    _core.random_normal(array._handle, mean, std, _handle(generator), None)
    return tensor


def random_(
    tensor: _Filled, *bounds: Any, generator: Generator | None = None
) -> _Filled:
    """Fills an array with integers. (+)

    Args:
        tensor: an array of integers, floats or bool.
        bounds: none: 0 to the largest that the type has, or the largest below which floats have
            all integers; `end`: [0, end); `start, end`: [start, end); `start, None`: `start` to the
            largest.
        generator: None: the default one.
    """
    array, of, count = asarray(tensor), _handle(generator), len(bounds)
    if count > 2:
        raise TypeError(f"at most 2 bounds, not {count}")
    if count == 0:
        _core.random_integers_all(array._handle, of, None)
    elif count == 1:
        _core.random_integers(array._handle, 0, bounds[0], of, None)
    elif bounds[1] is None:
        _core.random_integers_from(array._handle, bounds[0], of, None)
    else:
        _core.random_integers(array._handle, bounds[0], bounds[1], of, None)
    return tensor


def bernoulli_(
    tensor: _Filled, p: float | ArrayLike = 0.5, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with 1, with probability p, or 0; `p` may be an array of floats. (+)"""
    array = asarray(tensor)
    if isinstance(p, (int, float)):
        _core.random_bernoulli(array._handle, p, _handle(generator), None)
    else:
        probabilities = asarray(p)
        _core.random_bernoulli_tensor(
            array._handle, probabilities._handle, _handle(generator), None)
    return tensor


def exponential_(
    tensor: _Filled, lambd: float = 1.0, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with exponential numbers of the rate `lambd`. (+)"""
    array = asarray(tensor)
    _core.random_exponential(array._handle, lambd, _handle(generator), None)
    return tensor


def log_normal_(
    tensor: _Filled, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with numbers whose logarithm is normal, of `mean` and `std`. (+)"""
    array = asarray(tensor)
    _core.random_log_normal(array._handle, mean, std, _handle(generator), None)
    return tensor


def cauchy_(
    tensor: _Filled, median: float = 0.0, sigma: float = 1.0, *,
    generator: Generator | None = None,
) -> _Filled:
    """Fills an array with Cauchy's numbers; `sigma` is half of the range between quartiles. (+)"""
    array = asarray(tensor)
    _core.random_cauchy(array._handle, median, sigma, _handle(generator), None)
    return tensor


def geometric_(
    tensor: _Filled, p: float, *, generator: Generator | None = None
) -> _Filled:
    """Fills an array with the number of trials up to the first success, of probability p. (+)"""
    array = asarray(tensor)
    _core.random_geometric(array._handle, p, _handle(generator), None)
    return tensor
