"""Streams and events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from . import _core, devices
from .devices import Device, index_of
from .errors import InvalidArgumentError
from .handles import Owner

__all__ = [
    "Event", "ExternalStream", "Stream", "StreamContext", "current_stream", "default_stream",
    "get_stream_from_external", "set_stream", "stream",
]


class _ThreadState(threading.local):
    """What a thread has entered, and the external streams that it has made current."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, int]] = []
        self.external: dict[int, ExternalStream] = {}


_thread = _ThreadState()


class Stream(Owner):
    """A stream of a device, one of 32 for each priority; lower numbers are more urgent.

    >>> stream = tcuda.Stream()
    >>> with tcuda.stream(stream):
    ...     tcuda.current_stream() == stream
    True
    """

    __slots__ = ("cuda_stream",)
    _destroy = _core.stream_destroy
    device_type = 1  # PyTorch's number of CUDA
    cuda_stream: int  # the native handle, a cudaStream_t

    def __init__(self, device: Device = None, priority: int = 0) -> None:
        index = -1 if device is None else index_of(device)
        self._handle = handle = _core.stream_create(index, priority)
        self.cuda_stream = _core.stream_native(handle)

    @classmethod
    def _owning(cls, handle: int) -> Stream:
        self = super()._owning(handle)
        self.cuda_stream = _core.stream_native(handle)
        return self

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the most urgent priority of the current device."""
        return _core.stream_priority_range(-1)

    @property
    def stream_id(self) -> int:
        """PyTorch's number of the stream; 0 for default streams."""
        return _core.stream_id(self._handle)

    @property
    def device(self) -> devices.device:
        """The device of the stream."""
        return devices.device(_core.stream_device(self._handle))

    @property
    def device_index(self) -> int:
        """The ordinal of the device of the stream."""
        return _core.stream_device(self._handle)

    @property
    def priority(self) -> int:
        """The priority, 0 or negative."""
        return _core.stream_priority(self._handle)

    def query(self) -> bool:
        """Is all work on the stream done?"""
        return _core.stream_query(self._handle)

    def synchronize(self) -> None:
        """Waits until all work on the stream is done."""
        _core.stream_synchronize(self._handle)

    def wait_event(self, event: Event) -> None:
        """Makes later work on the stream wait for an event."""
        _core.stream_wait_event(self._handle, event._handle)

    def wait_stream(self, stream: Stream) -> None:
        """Makes later work on the stream wait for the present work of another stream."""
        _core.stream_wait_stream(self._handle, stream._handle)

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event, by default a new one, and returns it."""
        if event is None:
            return Event._owning(_core.stream_record_new_event(self._handle, 0))
        _core.event_record(event._handle, self._handle)
        return event

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Queues a call of a function without arguments; it must not call this package. (+)"""
        _core.stream_add_callback(self._handle, callback)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The CUDA stream protocol: its version and the native handle."""
        return 0, self.cuda_stream

    def __enter__(self) -> Stream:
        _thread.entered.append(_core.stream_exchange(self._handle))
        return self

    def __exit__(self, *exception: object) -> None:
        _restore(*_thread.entered.pop())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self._handle == other._handle or self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int]:
        return self.cuda_stream, _core.stream_device(self._handle)

    def __repr__(self) -> str:
        return f"<tcuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


# CUDA's fixed handles: no stream, the legacy default stream, each thread's default stream.
FIXED_STREAMS = (0, 1, 2)


class _HasStream(Protocol):
    """A stream of any library that has the CUDA stream protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


def native_stream(stream: _HasStream) -> int:
    """The native handle of a stream of any library that has the CUDA stream protocol."""
    try:
        version, handle = stream.__cuda_stream__()
    except AttributeError:
        raise TypeError(f"{stream!r} is neither a cudaStream_t nor has __cuda_stream__") from None
    if version != 0:
        raise ValueError(f"the stream has version {version} of the protocol, expected version 0")
    return handle


class ExternalStream(Stream):
    """A stream of another library, given by its cudaStream_t or an object that has it.

    An object is one with `__cuda_stream__`, as streams of CuPy, Numba, cuda.core and PyTorch (+);
    it is kept. The ExternalStream must live as long as this package uses the stream, and the
    stream as long as the ExternalStream. It does not destroy the stream.

    >>> stream = tcuda.Stream()
    >>> tcuda.ExternalStream(stream) == stream
    True
    """

    __slots__ = ("_owner",)

    def __init__(self, stream_ptr: int | _HasStream, device: Device = None) -> None:
        native = stream_ptr if isinstance(stream_ptr, int) else native_stream(stream_ptr)
        self._handle = _core.stream_from_external(index_of(device), native)
        self.cuda_stream = _core.stream_native(self._handle)
        self._owner = stream_ptr


class Event(Owner):
    """A point in the work of a stream; created on a device when it is first recorded.

    >>> start, end = tcuda.Event(enable_timing=True), tcuda.Event(enable_timing=True)
    >>> start.record(); end.record(); end.synchronize()
    >>> start.elapsed_time(end) >= 0.0
    True
    """

    __slots__ = ()
    _destroy = _core.event_destroy

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
        external: bool = False,
    ) -> None:
        flags = 0
        if enable_timing:
            flags |= _core.EVENT_TIMING
        if blocking:
            flags |= _core.EVENT_BLOCKING
        if interprocess:
            flags |= _core.EVENT_INTERPROCESS
        if external:
            flags |= _core.EVENT_EXTERNAL
        self._handle = _core.event_create(flags)

    @classmethod
    def from_ipc_handle(cls, device: Device, handle: bytes) -> Event:
        """The event of another process, from its `ipc_handle`."""
        if len(handle) != 64:
            raise InvalidArgumentError(f"expected a handle of 64 bytes, not {len(handle)}")
        return cls._owning(_core.event_from_ipc_handle(index_of(device), handle))

    def ipc_handle(self) -> bytes:
        """A handle for `from_ipc_handle` in another process; the event is an interprocess one."""
        return _core.event_ipc_handle(self._handle)

    def record(self, stream: Stream | None = None) -> None:
        """Records the event on a stream, by default the current one."""
        _core.event_record(self._handle, None if stream is None else stream._handle)

    def wait(self, stream: Stream | None = None) -> None:
        """Makes later work on a stream, by default the current one, wait for the event."""
        _core.event_wait(self._handle, None if stream is None else stream._handle)

    def query(self) -> bool:
        """Is the work done that the event was recorded after? True before the first record."""
        return _core.event_query(self._handle)

    def synchronize(self) -> None:
        """Waits until the work is done that the event was recorded after."""
        _core.event_synchronize(self._handle)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another; both have enable_timing and are done."""
        return _core.event_elapsed_ms(self._handle, end_event._handle)

    @property
    def cuda_event(self) -> int:
        """The native handle, a cudaEvent_t; 0 before the first record."""
        return _core.event_native(self._handle)

    @property
    def event_id(self) -> int:
        """The same as `cuda_event`."""
        return _core.event_native(self._handle)

    @property
    def device(self) -> devices.device | None:
        """The device of the event; None before the first record."""
        index = _core.event_device(self._handle)
        return None if index < 0 else devices.device(index)

    def __repr__(self) -> str:
        return f"<tcuda.Event {self.cuda_event:#x}>" if self.cuda_event else (
            "<tcuda.Event uninitialized>")


class StreamContext:
    """A context in which a stream and its device are current; None changes nothing."""

    __slots__ = ("stream", "_previous")

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous = _core.stream_exchange(self.stream._handle)

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            _restore(*self._previous)


def _restore(stream: int, device_index: int) -> None:
    """Undoes an exchange of the current stream."""
    _core.stream_set_current(stream)
    _core.device_set(device_index)


def stream(stream: Stream | None) -> StreamContext:
    """A context in which a stream and its device are current; None changes nothing."""
    return StreamContext(stream)


def current_stream(device: Device = None) -> Stream:
    """This thread's current stream of a device."""
    return Stream._owning(_core.stream_current(index_of(device)))


def default_stream(device: Device = None) -> Stream:
    """The default stream of a device."""
    return Stream._owning(_core.stream_default(index_of(device)))


def set_stream(stream: Stream | None) -> None:
    """Makes a stream and its device current for this thread; None changes nothing."""
    if stream is None:
        return
    _core.stream_set_current(stream._handle)
    if isinstance(stream, ExternalStream):
        _thread.external[stream.device_index] = stream
    elif _thread.external:
        _thread.external.pop(stream.device_index, None)


def get_stream_from_external(data_ptr: int | _HasStream, device: Device = None) -> Stream:
    """An `ExternalStream`."""
    return ExternalStream(data_ptr, device)
