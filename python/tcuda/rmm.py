"""RMM on tcuda: `tcuda.rmm.enable()` makes tcuda the memory resource of RMM's devices.

    import tcuda.rmm
    tcuda.rmm.enable()

All that allocates by RMM (cuDF, cuML, `rmm.DeviceBuffer`, RMM's allocators of CuPy, Numba and
PyTorch) then has memory of tcuda, in the order of its stream, which may end at any time after.
Out of memory is a MemoryError. RMM calls a function of Python for each allocation; C++ programs
use `tcuda_mr.hpp` instead, without Python.
"""

from __future__ import annotations

from typing import Any

import rmm.mr

from . import _core, errors, stream_order
from .devices import Device, device_count, index_of

__all__ = ["enable", "memory_resource"]


def enable() -> None:
    """Makes tcuda the memory resource of all devices. Memory that exists stays where it is."""
    for index in range(device_count()):
        rmm.mr.set_per_device_resource(index, memory_resource(index))


def memory_resource(device: Device = None) -> rmm.mr.CallbackMemoryResource:
    """A resource of RMM for a device; None: the current one.

    `rmm.mr.set_current_device_resource` takes it, and so do RMM's adaptors as their upstream.
    """
    index = index_of(device)
    if index < 0:
        index = _core.device_current()

    def allocate(size: int, stream: Any) -> int:
        try:
            return stream_order.allocate(size, index, stream)
        except errors.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def deallocate(address: int, size: int, stream: Any) -> None:
        stream_order.free(address, index, stream)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
