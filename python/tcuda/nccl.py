"""Collectives by NCCL, over devices of this process and over processes.

Arrays are `Array`s or those of other libraries, contiguous. Without `comms` the arrays of one call
are on different devices of this process, whose communicators are created once and kept. Work is
queued on `streams`, by default the current ones of the devices.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from . import _core
from .arrays import Array, ArrayLike, asarray
from .handles import Owner
from .streams import Stream

__all__ = [
    "Communicator", "SUM", "all_gather", "all_reduce", "broadcast", "group", "init_rank",
    "is_available", "recv", "reduce", "reduce_scatter", "send", "unique_id", "version",
]

SUM = _core.REDUCE_SUM  # PROD, MAX and MIN are 1, 2 and 3, as in NCCL
_lock = threading.Lock()
_of_devices: dict[tuple[int, ...], list[Communicator]] = {}


class Communicator(Owner):
    """One rank of a group, from `init_rank`."""

    __slots__ = ()
    _destroy = _core.communicator_destroy

    def query(self) -> None:
        """Raises the error with which work of the group has failed. (+)"""
        _core.communicator_query(self._handle)

    def abort(self) -> None:
        """Ends work that hangs, for example because another rank has ended. (+)"""
        _core.communicator_abort(self._handle)


def version() -> tuple[int, int, int]:
    """The version of NCCL: major, minor, patch."""
    return _core.nccl_version()


def is_available(tensors: Sequence[ArrayLike]) -> bool:
    """Can NCCL work with these arrays: contiguous ones on different devices?"""
    try:
        _core.nccl_version()
    except RuntimeError:
        return False
    arrays = [asarray(tensor) for tensor in tensors]
    devices = {array.device for array in arrays}
    return None not in devices and len(devices) == len(arrays) and all(map(_is_dense, arrays))


def _is_dense(array: Array) -> bool:
    """Is an array contiguous, row-major?"""
    expected = 1
    for size, stride in zip(reversed(array.shape), reversed(array.strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def unique_id() -> bytes:
    """The id of a new group, which one process sends to the others."""
    return _core.communicator_unique_id()


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """Joins a group with the current device; returns when all ranks have joined."""
    return Communicator._owning(_core.communicator_init_rank(uid, num_ranks, rank, -1))


@contextlib.contextmanager
def group() -> Iterator[None]:
    """A context whose collectives are queued together at its end. (+)"""
    _core.communicator_group_begin()
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the first error is the one to raise
            _core.communicator_group_end()
        raise
    else:
        _core.communicator_group_end()


def _comms_of(arrays: Sequence[Array]) -> list[Communicator]:
    """The communicators of the devices of arrays, which are created once."""
    devices = tuple(-1 if array.device is None else array.device.index for array in arrays)
    with _lock:
        if devices not in _of_devices:
            handles = _core.communicator_init_all(array("i", devices).tobytes())
            _of_devices[devices] = [Communicator._owning(handle) for handle in handles]
        return _of_devices[devices]


def _ranks(
    arrays: list[Array], streams: Sequence[Stream | None] | None,
    comms: Sequence[Communicator] | None,
) -> Iterator[tuple[int, int | None]]:
    """The handles of communicator and stream for each array."""
    for what, given in (("streams", streams), ("comms", comms)):
        if given is not None and len(given) != len(arrays):
            raise ValueError(f"there are {len(given)} {what} for {len(arrays)} arrays")
    comms = _comms_of(arrays) if comms is None else comms
    for comm, stream in zip(comms, streams or [None] * len(arrays)):
        yield comm._handle, None if stream is None else stream._handle


def _arrays(
    inputs: Sequence[ArrayLike], outputs: Sequence[ArrayLike] | None
) -> tuple[list[Array], list[Array]]:
    """Inputs and outputs; without outputs the inputs are both."""
    if not isinstance(inputs, Sequence) or isinstance(outputs, Array):
        raise TypeError("inputs and outputs are sequences of arrays, one for each rank")
    sources = [asarray(source) for source in inputs]
    if len({(source.dtype, source.nbytes) for source in sources}) > 1:
        raise ValueError("the inputs differ in dtype or number of elements")
    results = sources if outputs is None else [asarray(output) for output in outputs]
    if len(sources) != len(results):
        raise ValueError(f"there are {len(results)} outputs for {len(sources)} inputs")
    return sources, results


def all_reduce(
    inputs: Sequence[ArrayLike], outputs: Sequence[ArrayLike] | None = None, op: int = SUM,
    streams: Sequence[Stream | None] | None = None, comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduces over all ranks, element by element, to each of them; in place without outputs."""
    sources, results = _arrays(inputs, outputs)
    ranks = _ranks(sources, streams, comms)
    with group():
        for source, result, (comm, stream) in zip(sources, results, ranks):
            _core.communicator_all_reduce(comm, source._handle, result._handle, op, stream)


def reduce(
    inputs: Sequence[ArrayLike], output: ArrayLike | None = None, root: int = 0, op: int = SUM,
    streams: Sequence[Stream | None] | None = None, comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduces over the devices of this process to the input `root`, or to `output`."""
    sources = _arrays(inputs, None)[0]
    if not 0 <= root < len(sources):
        raise ValueError(f"root {root} is not one of {len(sources)} inputs")
    result = sources[root] if output is None else asarray(output)
    ranks = _ranks(sources, streams, comms)
    with group():
        for rank, (source, (comm, stream)) in enumerate(zip(sources, ranks)):
            written = result._handle if rank == root else None
            _core.communicator_reduce(comm, source._handle, written, op, root, stream)


def broadcast(
    inputs: Sequence[ArrayLike], root: int = 0, streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Copies the array of rank `root` into those of all ranks."""
    arrays = _arrays(inputs, None)[0]
    ranks = _ranks(arrays, streams, comms)
    with group():
        for each, (comm, stream) in zip(arrays, ranks):
            _core.communicator_broadcast(comm, each._handle, each._handle, root, stream)


def all_gather(
    inputs: Sequence[ArrayLike], outputs: Sequence[ArrayLike],
    streams: Sequence[Stream | None] | None = None, comms: Sequence[Communicator] | None = None,
) -> None:
    """Joins the inputs of all ranks, in their order, in the output of each of them."""
    sources, results = _arrays(inputs, outputs)
    ranks = _ranks(sources, streams, comms)
    with group():
        for source, result, (comm, stream) in zip(sources, results, ranks):
            _core.communicator_all_gather(comm, source._handle, result._handle, stream)


def reduce_scatter(
    inputs: Sequence[ArrayLike], outputs: Sequence[ArrayLike], op: int = SUM,
    streams: Sequence[Stream | None] | None = None, comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduces over all ranks, and gives each its part of the result, in their order."""
    sources, results = _arrays(inputs, outputs)
    ranks = _ranks(sources, streams, comms)
    with group():
        for source, result, (comm, stream) in zip(sources, results, ranks):
            _core.communicator_reduce_scatter(comm, source._handle, result._handle, op, stream)


def send(
    tensor: ArrayLike, peer: int, comm: Communicator, stream: Stream | None = None
) -> None:
    """Sends an array to a rank, which receives as many elements. (+)

    Messages that go both ways, or round a ring, are in one `group` on each rank.
    """
    source = asarray(tensor)
    _core.communicator_send(
        comm._handle, source._handle, peer, None if stream is None else stream._handle)


def recv(
    tensor: Any, peer: int, comm: Communicator, stream: Stream | None = None
) -> None:
    """Receives what a rank sends, into an array. (+)"""
    result = asarray(tensor)
    _core.communicator_recv(
        comm._handle, result._handle, peer, None if stream is None else stream._handle)
