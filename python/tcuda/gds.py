"""Files that are read into device memory and written from it (GPUDirect Storage, cuFile).

Where a function takes a buffer, this is an address with a size in bytes, or an object with
`__cuda_array_interface__` whose elements are contiguous.
"""

from __future__ import annotations

import math
import os
from typing import Any

from . import _core
from .handles import Unique

__all__ = ["GdsFile", "gds_deregister_buffer", "gds_register_buffer", "is_available"]

_FLAGS = {
    os.O_CREAT: _core.FILE_CREATE,
    os.O_TRUNC: _core.FILE_TRUNCATE,
    os.O_DIRECT: 0,  # tcuda uses it where the file system has it
    os.O_CLOEXEC: 0,
}
_ACCESS = {
    os.O_RDONLY: _core.FILE_READ,
    os.O_WRONLY: _core.FILE_WRITE,
    os.O_RDWR: _core.FILE_READ | _core.FILE_WRITE,
}


def is_available() -> bool:
    """Can files be opened without `staging`? That takes NVIDIA's cuFile."""
    return _core.file_is_supported()


def _span(buffer: Any, size: int | None) -> tuple[int, int]:
    """The address of a buffer and its size in bytes."""
    if isinstance(buffer, int):
        if size is None:
            raise TypeError("an address needs a size in bytes")
        return buffer, size
    interface = buffer.__cuda_array_interface__
    itemsize = int(interface["typestr"][2:])
    step = itemsize
    strides: list[int] = []
    for length in reversed(interface["shape"]):
        strides.insert(0, step)
        step *= length
    total = itemsize * math.prod(interface["shape"])
    given = interface.get("strides")
    if total and given is not None and any(
            length > 1 and one != other
            for length, one, other in zip(interface["shape"], given, strides)):
        raise ValueError("the elements of the buffer are not contiguous")
    if size is not None and size > total:
        raise ValueError(f"the buffer has {total} bytes, fewer than {size}")
    return int(interface["data"][0] or 0), total if size is None else size


def gds_register_buffer(s: Any, size: int | None = None) -> None:
    """Registers a buffer, so that its transfers need no copy through memory of the host.

    It is unregistered before it is freed. Other buffers can be transferred as well.
    """
    _core.file_register_buffer(*_span(s, size))


def gds_deregister_buffer(s: Any) -> None:
    """Ends the registration of a buffer, given as an address or an object."""
    _core.file_unregister_buffer(_span(s, 0)[0])


class GdsFile(Unique):
    """A file that is read into device memory and written from it.

    `flags` are those of `os.open`: an access mode, O_CREAT and O_TRUNC. With `staging` (+) it is
    transferred through pinned memory, without cuFile, on every machine.

    >>> import os, tempfile
    >>> address = tcuda.caching_allocator_alloc(1000)
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     f = tcuda.gds.GdsFile(file.name, os.O_RDWR, staging=True)
    ...     f.save_storage(address, offset=24, size=1000)
    ...     os.path.getsize(file.name)
    1024
    >>> tcuda.caching_allocator_delete(address)
    """

    def __init__(self, filename: str | os.PathLike[str], flags: int, *, staging: bool = False):
        self.filename = os.fspath(filename)
        self.flags = flags
        self._file = 0
        rest = flags & ~os.O_ACCMODE
        self._flags = _ACCESS[flags & os.O_ACCMODE]
        for flag, own in _FLAGS.items():
            if rest & flag == flag:
                self._flags |= own
                rest &= ~flag
        if rest:
            raise ValueError(f"GdsFile does not know the flags {rest:#o} of os.open")
        if staging:
            self._flags |= _core.FILE_STAGING
        self.register_handle()

    @property
    def fd(self) -> int:
        """The descriptor of the registered file."""
        return _core.file_native(self._file)[0]

    @property
    def handle(self) -> int | None:
        """cuFile's handle, 0 with `staging`; None while the file is not registered."""
        return _core.file_native(self._file)[1] if self._file else None

    def register_handle(self) -> None:
        """Opens and registers the file again after `deregister_handle`, with what it contains."""
        if self._file:
            raise RuntimeError(f"{self.filename} is registered already")
        self._file = _core.file_open(self.filename, self._flags)
        self._flags &= ~_core.FILE_TRUNCATE

    def deregister_handle(self) -> None:
        """Ends the registration and closes the file; calls of other threads end first."""
        if not self._file:
            raise RuntimeError(f"{self.filename} is not registered")
        file, self._file = self._file, 0
        _core.file_close(file)

    def load_storage(self, storage: Any, offset: int = 0, size: int | None = None) -> None:
        """Reads a buffer from the file, from `offset` in bytes on.

        The current stream's work is waited for. A file that ends before the buffer is an EOFError.
        """
        address, size = _span(storage, size)
        done = _core.file_read(self._registered(), address, size, offset, None)
        if done < size:
            raise EOFError(f"{self.filename} has {done} bytes from {offset} on, not {size}")

    def save_storage(self, storage: Any, offset: int = 0, size: int | None = None) -> None:
        """Writes a buffer to the file, from `offset` in bytes on, after the current stream's work.
        """
        address, size = _span(storage, size)
        _core.file_write(self._registered(), address, size, offset, None)

    def _registered(self) -> int:
        if not self._file:
            raise RuntimeError(f"{self.filename} is not registered: call register_handle()")
        return self._file

    def __del__(self) -> None:
        try:
            _core.file_close(self._file)
        except (AttributeError, RuntimeError):
            pass  # the constructor failed, or a forked child
