"""Memory that processes share. (+: PyTorch has it for tensors alone, in torch.multiprocessing)

The sender sends the bytes of `export_memory` by any means, and the receiver opens them:

    handle = tcuda.ipc.export_memory(address)   # in one process
    memory = tcuda.ipc.Memory(handle)           # in another one of the same user
"""

from __future__ import annotations

from . import _core
from .handles import Unique
from .streams import Stream

__all__ = ["Memory", "export_memory", "withdraw"]


def export_memory(mem_ptr: int, stream: Stream | None = None) -> bytes:
    """A handle of memory, any address in a block of the cache, for one receiver: 512 bytes.

    What the receiver queues comes after the present work of a stream, by default the current one.
    Memory that is freed here is reused when the receiver has closed it or has ended.
    """
    return _core.ipc_export(mem_ptr, None if stream is None else stream._handle)


def withdraw(handle: bytes) -> None:
    """Withdraws a handle whose receiver has not opened it and will not."""
    _core.ipc_withdraw(handle)


class Memory(Unique):
    """Memory of another process, until `close` or the end of a `with` statement.

    `ptr` is the address that was exported, here; `size` the bytes from there to the end of the
    requested size of the block. Work of `stream`, by default the current one, comes after the
    sender's.
    """

    __slots__ = ("ptr", "size", "_open")

    def __init__(self, handle: bytes, stream: Stream | None = None) -> None:
        self._open = False
        self.ptr, self.size = _core.ipc_import(handle, None if stream is None else stream._handle)
        self._open = True

    def close(self, stream: Stream | None = None) -> None:
        """Waits for the work of a stream, by default the current one, and gives the memory back.

        Work of other streams with the memory is done before. A second call does nothing.
        """
        if self._open:
            self._open = False
            _core.ipc_close(self.ptr, None if stream is None else stream._handle)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, RuntimeError):
            pass  # the constructor failed, or the library was shut down
