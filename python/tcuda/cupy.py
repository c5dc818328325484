"""CuPy on tcuda: `tcuda.cupy.enable()` makes tcuda the allocator of CuPy's device memory.

    import tcuda.cupy
    tcuda.cupy.enable()

CuPy then calls two C functions for each array. Memory is allocated for CuPy's current stream, and
is reused in the order of that stream. An array that is freed while another stream is current is
not reused before the work that this stream has by then, which CuPy's own pool does not consider.

Where there is not enough memory, cupy.cuda.memory.OutOfMemoryError is raised, which is also a
tcuda.OutOfMemoryError. CuPy's own memory pool has no part in it: tcuda.memory_stats has the
statistics, and tcuda.empty_cache gives unused memory back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
from cupy_backends.cuda import stream as cupy_streams

from . import _core, errors
from .streams import FIXED_STREAMS, ExternalStream

__all__ = ["OutOfMemoryError", "enable", "malloc"]

_BaseStream = cupy.cuda.Stream.__mro__[1]  # of CuPy's streams and external ones


class OutOfMemoryError(  # type: ignore[misc]
    errors.OutOfMemoryError, cupy.cuda.memory.OutOfMemoryError
):
    """There is not enough device memory: CuPy's error and tcuda's at once."""

    def __init__(self, message: str) -> None:
        RuntimeError.__init__(self, message)

    def __reduce__(self) -> Any:
        return type(self), self.args, {"status": self.status, "code": self.code}


def enable(pinned: bool = False) -> None:
    """Makes tcuda the allocator of CuPy's memory on all devices; again: no-op.

    Arrays that exist keep their memory. `cupy.cuda.set_allocator` takes it back, and
    `cupy.cuda.using_allocator(tcuda.cupy.malloc)` is for a part of a program.

    Args:
        pinned: True: CuPy's pinned memory, too. Freed memory is reused at once, as by CuPy's own
            pool; CuPy keeps the memory of the copies that it starts itself.
    """
    cupy.cuda.set_allocator(malloc)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(_allocate_pinned)


def _current_handle(native: int) -> int:
    """The tcuda_stream of CuPy's current stream, which has this native handle."""
    stream = cupy.cuda.get_current_stream()
    handle = _handle_of(stream)
    if handle and getattr(stream, "_foreign_stream_ref", stream) is None:
        _core.cupy_cache(native, handle)  # until CuPy destroys the stream
    return handle


def _handle_of(stream: Any) -> int:
    """The tcuda_stream of a stream of CuPy; 0: tcuda takes the native handle.

    An attribute of CuPy's object keeps it, so that tcuda may use the native stream as long as the
    object lives, and waits for an event in its place afterwards.
    """
    if stream.ptr in FIXED_STREAMS:
        return 0
    if "_tcuda" not in stream.__dict__:
        try:
            stream._tcuda = ExternalStream(stream.ptr, stream.device_id)
        except errors.CudaError as error:
            if error.status == "CAPTURING":  # and tcuda has not seen the stream before
                return 0
            raise
    return int(stream._tcuda._handle)


def _end(stream: Any) -> None:
    """Has tcuda forget a stream, which CuPy may be about to destroy."""
    _core.cupy_cache(0, None)
    stream.__dict__.pop("_tcuda", None)


def _call_before(kind: Any, method: str, action: Callable[[Any], object]) -> None:
    """Has a method of CuPy's streams call a function first."""
    original = getattr(kind, method)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        action(self)
        return original(self, *args, **kwargs)

    setattr(kind, method, wrapper)


def _fail(size: int, status: int, message: str, code: int) -> None:
    """Raises the exception for a failed allocation."""
    error = errors.error_for(status, message, code)
    if isinstance(error, errors.OutOfMemoryError):
        both = OutOfMemoryError(message)
        both.status, both.code = error.status, error.code
        raise both
    raise error


class _PinnedMemory(cupy.cuda.PinnedMemory):  # type: ignore[misc]
    """Pinned memory of tcuda, as CuPy keeps its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ptr = _core.host_malloc(size)

    def __del__(self) -> None:
        if address := getattr(self, "ptr", 0):
            _core.host_free(address)


def _allocate_pinned(size: int) -> cupy.cuda.PinnedMemoryPointer:
    return cupy.cuda.PinnedMemoryPointer(_PinnedMemory(size), 0)


def _allocator() -> Any:
    """CuPy's object that calls the C functions."""
    capsule = cupy_streams.__pyx_capi__["get_current_stream_ptr"]
    functions = _core.cupy_functions(capsule, _current_handle, _fail)
    for method in ("__enter__", "use", "begin_capture"):
        _call_before(_BaseStream, method, _handle_of)
    _call_before(cupy.cuda.Stream, "__del__", _end)
    return cupy.cuda.memory.CFunctionAllocator(0, *functions, None)


# Memory of tcuda as CuPy's allocators return it, by its size in bytes.
malloc: Callable[[int], cupy.cuda.MemoryPointer]
malloc = functools.partial(_core.cupy_malloc, _allocator().malloc)
