"""Memory in the order of another library's stream, which that library may destroy at any time."""

from __future__ import annotations

from typing import Any

from . import _core, errors
from .streams import FIXED_STREAMS, native_stream


def allocate(size: int, device: int, stream: Any) -> int:
    """Memory for work on a stream of any library."""
    native = native_stream(stream)
    handle = _handle(device, native)
    if handle is None:
        return _core.malloc_native(size, device, native)
    try:
        return _core.malloc(size, device, handle)
    finally:
        _core.stream_destroy(handle)


def free(address: int, device: int, stream: Any) -> None:
    """Frees memory of `allocate` in the order of a stream, which comes after all uses.

    Afterwards the stream may end: the library waits for an event in its place.
    """
    native = native_stream(stream)
    handle = _handle(device, native)
    if handle is None:
        _core.free_on(address, native)
        return
    try:
        _core.record_stream(address, handle)
        _core.free(address)
    finally:
        _core.stream_destroy(handle)


def _handle(device: int, native: int) -> int | None:
    """A handle of a stream; None for one that never ends, or is captured and not known yet."""
    if native in FIXED_STREAMS:
        return None
    try:
        return _core.stream_from_external(device, native)
    except errors.CudaError as error:
        if error.status == "CAPTURING":
            return None
        raise
