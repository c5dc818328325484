"""Elementwise functions in CUDA C++, compiled by NVRTC at the first call for new types."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import _core
from .arrays import Array, ArrayLike, asarray, bits_of, empty, tensor_list
from .handles import Owner

__all__: list[str] = []  # as torch.cuda.jiterator

_FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
_UNPROMOTED = {"uint16", "uint32", "uint64", *_FLOAT8}  # but for unsigned integers with floats


@functools.cache
def _load_compiler() -> None:
    """Loads the NVRTC that pip has installed, if any: the library takes one that is loaded."""
    import ctypes  # most programs do not need them
    import pathlib

    if "TCUDA_NVRTC_PATH" not in os.environ:
        for folder in sys.path:
            for path in pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.[0-9]*"):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(path))


def _promote(a: str, b: str) -> str:
    """The common type of two: torch.promote_types."""
    if a == b:
        return a
    floats = [name for name in (a, b) if name in ("float16", "bfloat16", "float32", "float64")]
    if {a, b} & _UNPROMOTED:
        if len(floats) == 1 and not {a, b} & _FLOAT8:
            return floats[0]
        raise TypeError(f"{a} and {b} have no common type")
    if any(_category(name) == 3 for name in (a, b)):
        parts = [_part_bits(name) for name in (a, b) if _category(name) >= 2]
        return f"complex{2 * max(parts)}"
    if len(floats) == 1:
        return floats[0]
    if floats:  # float16 with bfloat16 gives float32
        return "float64" if "float64" in floats else "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    if "bool" in (a, b):
        return b if a == "bool" else a
    return max(a, b, key=bits_of)


def _part_bits(dtype: str) -> int:
    """The bits of a part of the complex type that has room for a float, or of a complex type."""
    if dtype == "bfloat16":
        return 32
    return bits_of(dtype) // 2 if _category(dtype) == 3 else bits_of(dtype)


def _category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return next(index for index, part in enumerate(("bool", "int", "float", "complex"))
                if part in dtype)


def _common_type(arrays: Iterable[Array]) -> str:
    """torch.result_type: arrays without dimensions count only by a higher category."""
    sums: list[str | None] = [None, None]  # of those with and without dimensions
    for array in arrays:
        index = 0 if array.shape else 1
        sum_ = sums[index]
        sums[index] = array.dtype if sum_ is None else _promote(sum_, array.dtype)
    with_, without = sums
    if with_ is None or without is None:
        return with_ or without or "float32"
    if _category(without) <= _category(with_):
        return with_
    if _category(with_) == 2 and with_ not in _FLOAT8:
        return f"complex{2 * _part_bits(with_)}"
    return _promote(with_, without)


def _common_shape(arrays: Iterable[Array]) -> tuple[int, ...]:
    """The shape to which arrays broadcast."""
    shapes = [array.shape for array in arrays]
    common = []
    for sizes in itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            raise ValueError(f"the shapes {shapes} do not broadcast")
        common.append(others.pop() if others else 1)
    return tuple(reversed(common))


class _JittedFunction(Owner):
    """A function over arrays, `Array`s or those of other libraries, on one device."""

    __slots__ = ("_num_outputs", "_defaults")
    _destroy = _core.jit_destroy

    def __init__(self, handle: int, num_outputs: int, defaults: dict[str, Any]) -> None:
        self._handle = handle
        self._num_outputs = num_outputs
        self._defaults = defaults

    def __call__(self, *tensors: ArrayLike, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in self._defaults:
                raise KeyError(f"{name} is not one of the keyword arguments "
                               f"{', '.join(self._defaults)}")
        inputs = list(map(asarray, tensors))
        shape, dtype = _common_shape(inputs), _common_type(inputs)
        device = inputs[0].device if inputs else None
        outputs = [empty(shape, dtype, device) for _ in range(self._num_outputs or 1)]
        _load_compiler()
        _core.jit_call(self._handle, tensor_list(inputs), kwargs, tensor_list(outputs))
        return tuple(outputs) if self._num_outputs else outputs[0]


def _create_jit_fn(code_string: str, **kwargs: Any) -> Callable[..., Array]:
    """A function from a template of CUDA C++, `template <typename T> T name(T x, ...) {...}`.

    It takes one element of each input, then the extra arguments, whose defaults are the keyword
    arguments (float, int, bool or complex), and returns an element of the result. A call takes
    arrays, which broadcast and are promoted as in PyTorch, and perhaps other values of the extra
    arguments. It needs NVRTC, which `pip install nvidia-cuda-nvrtc-cu12` brings.
    """
    return _JittedFunction(_core.jit_create(code_string, kwargs), 0, kwargs)


def _create_multi_output_jit_fn(
    code_string: str, num_outputs: int, **kwargs: Any
) -> Callable[..., tuple[Array, ...]]:
    """`_create_jit_fn` for a function with 1 to 8 results, its last parameters, of type T &."""
    handle = _core.jit_create_multi(code_string, num_outputs, kwargs)
    return _JittedFunction(handle, num_outputs, kwargs)
