"""Copies and sums of arrays on several devices, without NCCL.

Arrays are `Array`s or those of other libraries; results are `Array`s. Work is queued: it comes
after what the current streams of the devices hold, and what is queued on these later comes after
it.
A result on the device of its input is in the input's memory. "cpu" is pinned memory of the host.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from . import _core
from .arrays import Array, ArrayLike, asarray, tensor_list
from .devices import Device, index_of
from .streams import Stream

__all__ = [
    "broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter",
]

_BUFFER_BYTES = 10 << 20


def _place(device: Device) -> int:
    """The ordinal of a device; that of the host for "cpu"."""
    if device == "cpu" or getattr(device, "type", "cuda") == "cpu":
        return _core.CPU_DEVICE
    return index_of(device)


def _places(devices: Iterable[Device] | None) -> bytes:
    """The ordinals of devices, by default of all, as a list in C."""
    if devices is None:
        devices = range(_core.device_count())
    return array("i", map(_place, devices)).tobytes()


def _results(handles: list[int], origins: Sequence[Array]) -> tuple[Array, ...]:
    """The arrays of handles, which keep those of `origins` whose memory they have."""
    results = tuple(map(Array._owning, handles))
    for result in results:
        any(_core.tensor_set_origin(result._handle, origin._handle) for origin in origins)
    return results


def broadcast(
    tensor: ArrayLike, devices: Iterable[Device] | None = None, *,
    out: Iterable[Any] | None = None,
) -> tuple[Any, ...]:
    """Copies an array to devices, by default all, or into the arrays of `out`.

    >>> array = tcuda.empty(3, "uint8")
    >>> array.copy_from(b"abc")
    >>> [copy.tobytes() for copy in tcuda.comm.broadcast(array, [0, 1])]
    [b'abc', b'abc']
    """
    source = asarray(tensor)
    if out is None:
        return _results(_core.comm_broadcast(source._handle, _places(devices)), [source])
    if devices is not None:
        raise RuntimeError("pass devices or out, not both")
    out = tuple(out)
    written = list(map(asarray, out))
    _core.comm_broadcast_into(source._handle, tensor_list(written))
    return out


def broadcast_coalesced(
    tensors: Iterable[ArrayLike], devices: Iterable[Device], buffer_size: int = _BUFFER_BYTES
) -> list[list[Array]]:
    """Copies many arrays of one device to devices; the lists of the results are by device.

    Args:
        tensors: all on one device, which may be missing in `devices`.
        devices: one or more.
        buffer_size: the most bytes of memory that several results share.
    """
    sources, places = list(map(asarray, tensors)), _places(devices)
    handles = _core.comm_broadcast_coalesced(tensor_list(sources), places, buffer_size)
    count = len(sources)
    results = [list(map(Array._owning, handles[start:start + count]))
               for start in range(0, len(handles), count or 1)]
    for row in results:
        for result, source in zip(row, sources):
            _core.tensor_set_origin(result._handle, source._handle)
    return results or [[] for _ in range(len(places) // 4)]


def reduce_add(inputs: Iterable[ArrayLike], destination: Device = None) -> Array:
    """The sum of arrays of one shape on several devices, on a device, by default the current one.

    >>> arrays = [tcuda.empty(2, "int8", index) for index in (0, 1)]
    >>> for array in arrays:
    ...     array.copy_from(bytes([3, 4]))
    >>> list(tcuda.comm.reduce_add(arrays).tobytes())
    [6, 8]
    """
    sources = list(map(asarray, inputs))
    handles = _core.comm_reduce_add(tensor_list(sources), _place(destination))
    return _results(handles, sources)[0]


def reduce_add_coalesced(
    inputs: Iterable[Iterable[ArrayLike]], destination: Device = None,
    buffer_size: int = _BUFFER_BYTES,
) -> tuple[Array, ...]:
    """`reduce_add` of the first arrays of all lists, of the second ones, and so on.

    Args:
        inputs: a list of arrays for each device, all of one length.
        destination: where the sums are; None: the current device.
        buffer_size: the most bytes of memory that several sums share.
    """
    lists = [list(map(asarray, row)) for row in inputs]
    if len({len(row) for row in lists}) > 1:
        raise ValueError("the lists have different lengths")
    handles = _core.comm_reduce_add_coalesced(
        tensor_list(source for row in lists for source in row), len(lists), _place(destination),
        buffer_size)
    return tuple(
        _results([handle], column)[0] for handle, column in zip(handles, zip(*lists)))


def scatter(
    tensor: ArrayLike, devices: Iterable[Device] | None = None,
    chunk_sizes: Iterable[int] | None = None, dim: int = 0,
    streams: Iterable[Stream | None] | None = None, *, out: Iterable[Any] | None = None,
) -> tuple[Any, ...]:
    """Splits an array along a dimension, one piece for each device, or into the arrays of `out`.

    Args:
        tensor: of one dimension or more.
        devices: by default all.
        chunk_sizes: the size of each piece along `dim`; None: equal ones but for the last, which
            may be fewer than the devices.
        dim: the dimension; negative ones count from the end.
        streams: for each piece a stream to copy on; None: the current one of its device.
        out: written; their sizes along `dim` are those of the pieces.
    """
    source = asarray(tensor)
    handles = None if streams is None else array(
        "Q", [0 if stream is None else stream._handle for stream in streams]).tobytes()
    if out is None:
        sizes = None if chunk_sizes is None else array("q", chunk_sizes).tobytes()
        pieces = _core.comm_scatter(source._handle, _places(devices), sizes, dim, handles)
        return _results(pieces, [source])
    if devices is not None or chunk_sizes is not None:
        raise RuntimeError("pass devices and chunk_sizes, or out, not both")
    out = tuple(out)
    written = list(map(asarray, out))
    _core.comm_scatter_into(source._handle, tensor_list(written), dim, handles)
    return out


def gather(
    tensors: Iterable[ArrayLike], dim: int = 0, destination: Device = None, *, out: Any = None
) -> Any:
    """Joins arrays of several devices along a dimension, on a device or in the array `out`.

    Args:
        tensors: of one shape but for `dim`.
        dim: the dimension; negative ones count from the end.
        destination: a device, or "cpu"; None: the current device.
        out: written, and returned; instead of a destination.
    """
    sources = list(map(asarray, tensors))
    if out is None:
        handles = _core.comm_gather(tensor_list(sources), dim, _place(destination))
        return _results(handles, sources)[0]
    if destination is not None:
        raise RuntimeError("pass destination or out, not both")
    written = asarray(out)
    _core.comm_gather_into(tensor_list(sources), dim, written._handle)
    return out
