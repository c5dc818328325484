"""cuda.core on tcuda: `tcuda.cuda_core.enable()` makes tcuda the memory resource of its devices.

    import tcuda.cuda_core
    tcuda.cuda_core.enable()

`Device.allocate` then gives memory of tcuda, in the order of the stream that is passed. A buffer
is freed in the order of its deallocation stream. Streams may end as cuda.core permits it, also
while buffers exist that were allocated on them.

Streams of both are those of the other: `tcuda.ExternalStream` takes a stream of cuda.core, and
`Device.create_stream`, and each call that takes a stream, one of tcuda.
"""

from __future__ import annotations

from typing import Any

import cuda.core
from cuda.core import Buffer
from cuda.core.graph import GraphBuilder

from . import _core, stream_order
from .devices import Device, device_count, index_of
from .streams import native_stream

__all__ = ["MemoryResource", "enable"]


def enable(device: Device = None) -> None:
    """Makes tcuda the memory resource of a device of cuda.core, in this thread.

    Buffers that exist keep their memory. cuda.core has an object for each device and thread.

    Args:
        device: None: all devices.
    """
    indices = range(device_count()) if device is None else [index_of(device)]
    for index in indices:
        cuda.core.Device(index).memory_resource = MemoryResource(index)


class MemoryResource(cuda.core.MemoryResource):  # type: ignore[misc]
    """Memory of a device, from tcuda's cache; None: of the current one.

    Raises tcuda.OutOfMemoryError where there is not enough.
    """

    def __init__(self, device: Device = None) -> None:
        index = index_of(device)
        self._index = _core.device_current() if index < 0 else index

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        """A buffer of `size` bytes for work on a stream."""
        if not isinstance(stream, (cuda.core.Stream, GraphBuilder)):
            stream = cuda.core.Stream.from_handle(native_stream(stream))
        address = stream_order.allocate(size, self._index, stream)
        return Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees memory of `allocate` in the order of a stream, which comes after all uses."""
        stream_order.free(int(ptr), self._index, stream)

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def is_managed(self) -> bool:
        """False."""
        return False

    @property
    def device_id(self) -> int:
        """The ordinal of the device."""
        return self._index
