"""Numba on tcuda: `tcuda.numba.enable()` makes tcuda the allocator of Numba's CUDA memory.

    import tcuda.numba
    tcuda.numba.enable()  # before the first use of CUDA by Numba

NUMBA_CUDA_MEMORY_MANAGER=tcuda.numba does the same without a change of the program. The memory
manager is a plugin of Numba's interface for external memory management (EMM), version 1.

Numba allocates without a stream, and its arrays may be used on any. So an array that is freed is
reused only after all work that its device has by then. The host does not wait for that, unlike
cuMemFree, which Numba's own manager calls; before CUDA 12.5 it does. Freeing while a stream is
captured invalidates the capture, as cuMemFree may: `cuda.defer_cleanup` prevents it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver

from . import _core, errors
from .streams import ExternalStream

__all__ = ["IpcHandle", "MemoryManager", "enable"]

# How a block is recorded for a stream, how it is freed, and its address.
_Block = tuple[Callable[[int, int], None], Callable[[int], None], int]
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_OUT_OF_MEMORY = 2


def enable() -> None:
    """Makes tcuda the allocator of Numba's CUDA memory, before Numba's first use of CUDA."""
    cuda.set_memory_manager(MemoryManager)


class _AllWork:
    """A stream of a device that comes after all work of the device."""

    def __init__(self, context: Any, device: int) -> None:
        driver = numba_driver.driver
        self._context = context
        self._native = driver.cuStreamCreate(_STREAM_NON_BLOCKING)
        self._event = driver.cuEventCreate(_EVENT_DISABLE_TIMING)
        self._stream = ExternalStream(int(self._native), device)

    def handle(self) -> int:
        """The tcuda_stream, which comes after the work that the device has now."""
        driver = numba_driver.driver
        try:
            driver.cuCtxRecordEvent(self._context.handle, self._event)
        except (AttributeError, RuntimeError):  # The driver is older than CUDA 12.5.
            self._context.synchronize()
        else:
            driver.cuStreamWaitEvent(self._native, self._event, 0)
        return self._stream._handle


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Numba's memory of one device, from tcuda: on the device, and pinned on the host.

    Memory that is pinned where it is, managed memory, and pinned memory that is mapped or
    write-combined come from the driver, as with Numba's own manager.
    """

    interface_version = 1
    _devices: ClassVar[set[int]] = set()  # those of all managers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serials = itertools.count()
        self._finalizers: dict[int, Callable[[], None]] = {}  # of allocated blocks
        self._blocks: list[_Block] = []  # to be freed
        self._all_work: _AllWork | None = None

    def initialize(self) -> None:
        """Makes the stream that frees wait on; Numba calls it with the context current."""
        if self._all_work is None:
            self._device = int(numba_driver.driver.cuCtxGetDevice())
            self._all_work = _AllWork(self.context, self._device)
            # The driver copies mapped memory between devices only if one reaches the other's.
            for other in self._devices - {self._device}:
                for pair in ((self._device, other), (other, self._device)):
                    if _core.device_can_access_peer(*pair):
                        _core.device_enable_peer_access(*pair)
            self._devices.add(self._device)

    def memalloc(self, size: int) -> cuda.MemoryPointer:
        """Device memory for any stream; raises Numba's CudaAPIError where there is not enough."""
        try:
            address = _core.malloc_native(size, self._device, 0)
        except errors.OutOfMemoryError as error:
            raise numba_driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from error
        return cuda.MemoryPointer(
            self.context, numba_driver.binding.CUdeviceptr(address), size,
            finalizer=self._finalizer(address, size, _core.record_stream, _core.free))

    def memhostalloc(
        self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False
    ) -> Any:
        """Pinned memory, which all contexts see as such."""
        if mapped or wc:
            return super().memhostalloc(size, mapped, portable, wc)
        address = _core.host_malloc(size)
        return cuda.PinnedMemory(
            self.context, address, size,
            finalizer=self._finalizer(address, size, _core.host_record, _core.host_free))

    def _finalizer(
        self, address: int, size: int, record: Callable[[int, int], None],
        free: Callable[[int], None],
    ) -> Callable[[], None]:
        """Has a block freed once, by the function that this returns or by `reset`."""
        serial = next(self._serials)

        def finalizer() -> None:
            if self._finalizers.pop(serial, None):
                self.deallocations.add_item(self._free, (record, free, address), size)

        self._finalizers[serial] = finalizer
        return finalizer

    def _free(self, block: _Block) -> None:
        """Frees a block after all work of the device, and earlier ones that could not be freed."""
        self._blocks.append(block)
        assert self._all_work is not None
        try:
            stream = self._all_work.handle()
        except numba_driver.CudaAPIError:
            return  # A stream is captured.
        blocks, self._blocks = self._blocks, []
        for record, free, address in blocks:
            record(address, stream)
            free(address)

    def reset(self) -> None:
        """Frees all memory of the context."""
        for finalizer in list(self._finalizers.values()):
            finalizer()
        super().reset()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A context in which nothing is freed; at its end all is that was to be."""
        with super().defer_cleanup():
            yield
        self.deallocations.clear()

    def get_memory_info(self) -> cuda.MemoryInfo:
        """Free and total bytes of the device, as the driver reports them."""
        return cuda.MemoryInfo(*_core.memory_info(self._device))

    def get_ipc_handle(self, memory: Any) -> IpcHandle:
        """A handle of memory for another process that uses tcuda too."""
        def export() -> _RawHandle:
            assert self._all_work is not None
            return _RawHandle(_core.ipc_export(int(memory.handle), self._all_work.handle()))

        handle = IpcHandle(
            memory, export(), memory.size, self.context.device.get_device_identity())
        handle._export = export
        return handle


class _RawHandle(bytes):
    """A handle of tcuda, which has its bytes as the driver's handles have them."""

    @property
    def reserved(self) -> bytes:
        """The bytes."""
        return bytes(self)


class IpcHandle(cuda.IpcHandle):  # type: ignore[misc]
    """A handle of Numba that tcuda opens in the other process, one for each time it is pickled."""

    _impl: Any
    _export: Callable[[], _RawHandle]
    _is_pickled = False

    def open(self, context: Any) -> Any:
        """The memory of the other process, until `close`; a copy of it on another device."""
        if self.base is not None:
            raise ValueError("the memory is of this process: use its array")
        if self._impl is not None:
            return super().open_direct(context)  # Numba's error for a handle that is open
        address, _ = _core.ipc_import(self.handle, None)
        owner, user = _core.device_of(address), int(context.device.id)
        _core.device_synchronize(owner)
        if owner == user:
            # Pointers that `own` returns refer to it weakly.
            self._impl = cuda.MemoryPointer(
                context, numba_driver.binding.CUdeviceptr(address), self.size)
            return self._impl.own()
        self._impl = context.memalloc(self.size)
        _core.copy(int(self._impl.handle), address, self.size, None)
        _core.device_synchronize(user)
        _core.ipc_close(address, None)
        return self._impl

    open_direct = open_staged = open

    def close(self) -> None:
        """Ends the use of the memory, after the work of the device."""
        if self._impl is None:
            super().close()  # Numba's error for a handle that is not open
            return
        memory, self._impl = self._impl, None
        if not memory.is_managed:
            numba_driver.driver.cuCtxSynchronize()
            _core.ipc_close(int(memory.handle), None)

    def __reduce__(self) -> Any:
        # Each receiver needs a handle of its own.
        handle = self._export() if self._is_pickled else self.handle
        self._is_pickled = self.base is not None
        return _rebuild_ipc_handle, (handle, self.size, self.source_info)


def _rebuild_ipc_handle(handle: _RawHandle, size: int, source_info: Any) -> IpcHandle:
    return IpcHandle(None, handle, size, source_info)


_numba_memory_manager = MemoryManager
