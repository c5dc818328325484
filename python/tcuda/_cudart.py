"""What torch.cuda shows of the CUDA runtime: `cudart`, `cudaStatus`, `check_error`."""

from __future__ import annotations

import ctypes
import enum
import os
import pathlib
from collections.abc import Callable

from . import _core
from .devices import Device, index_of
from .errors import CudaError
from .streams import Stream

__all__ = ["check_error", "cudaStatus", "cudart"]


class cudaStatus:
    """Two codes of the CUDA runtime, with PyTorch's numbers."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


# The codes of the runtime for failures that have no code of the driver.
_CODES = {"INVALID_ARGUMENT": 1, "OUT_OF_MEMORY": 2, "OUT_OF_HOST_MEMORY": 2, "NO_DRIVER": 35,
          "NO_DEVICE": 100, "INVALID_DEVICE": 101, "INVALID_HANDLE": 400}
_REGISTERED, _NOT_REGISTERED, _UNKNOWN = 712, 713, 999


class cudaError(enum.IntEnum):
    """The code of a call of the CUDA runtime; other numbers than these are plain integers."""

    success = 0


def _driver() -> ctypes.CDLL:
    """The driver, NVIDIA's or the simulated one, which is open already."""
    if _core.backend_name() == "sim":
        beside = pathlib.Path(__file__).parent / "lib/libtcuda_sim.so"
        return ctypes.CDLL(os.environ.get("TCUDA_SIM_PATH") or str(beside))
    return ctypes.CDLL(os.environ.get("TCUDA_CUDA_DRIVER_PATH") or "libcuda.so.1")


def _error_string(error: int) -> str:
    """The driver's description of a code."""
    text = ctypes.c_char_p()
    if _driver().cuGetErrorString(int(error), ctypes.byref(text)) != 0 or text.value is None:
        return "unrecognized error code"
    return text.value.decode()


def check_error(res: int) -> None:
    """Raises a CudaError unless a code of the CUDA runtime is `cudaStatus.SUCCESS`."""
    if res != cudaStatus.SUCCESS:
        error = CudaError(f"{_error_string(res)} ({int(res)})")
        error.status, error.code = "CUDA_ERROR", int(res)
        raise error


def _outcome(
    function: Callable[..., object], *arguments: object, invalid_pointer: int = _UNKNOWN
) -> int:
    """Calls a function; returns the code of the runtime."""
    try:
        function(*arguments)
    except CudaError as error:
        if error.status == "INVALID_POINTER":
            return invalid_pointer
        return error.code or _CODES.get(error.status, _UNKNOWN)
    return cudaError.success


class Cudart:
    """The functions of the CUDA runtime that PyTorch shows; all but two return a code of it.

    `cudaStreamCreate` writes one of this package's 32 pooled streams, which do not wait for the
    default stream, where CUDA makes a new one that does.
    """

    cudaError = cudaError

    def __init__(self) -> None:
        self._streams: dict[int, list[Stream]] = {}

    def cudaGetErrorString(self, error: int) -> str:
        """The driver's description of a code."""
        return _error_string(error)

    def cudaProfilerStart(self) -> int:
        """Starts a profiler that waits for it."""
        return _outcome(_core.profiler_start)

    def cudaProfilerStop(self) -> int:
        """Stops the profiler."""
        return _outcome(_core.profiler_stop)

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> int:
        """Page-locks `size` bytes of host memory where they are; flags: `_core.HOST_REGISTER_*`."""
        return _outcome(_core.host_register, ptr, size, flags, invalid_pointer=_REGISTERED)

    def cudaHostUnregister(self, ptr: int) -> int:
        """Ends what `cudaHostRegister` did."""
        return _outcome(_core.host_unregister, ptr, invalid_pointer=_NOT_REGISTERED)

    def cudaStreamCreate(self, ptr: int) -> int:
        """Writes a cudaStream_t of the current device to an address."""

        def create() -> None:
            stream = Stream()
            self._streams.setdefault(stream.cuda_stream, []).append(stream)
            ctypes.c_void_p.from_address(ptr).value = stream.cuda_stream

        return _outcome(create)

    def cudaStreamDestroy(self, ptr: int) -> int:
        """Ends a stream of `cudaStreamCreate`; its queued work continues."""
        if not self._streams.get(ptr):
            return _CODES["INVALID_HANDLE"]
        self._streams[ptr].pop()
        return cudaError.success

    def cudaMemGetInfo(self, device: Device) -> tuple[int, int]:
        """Free and total bytes of a device."""
        return _core.memory_info(index_of(device))


_cudart = Cudart()


def cudart() -> Cudart:
    """The functions of the CUDA runtime that PyTorch shows, after initialization.

    >>> tcuda.check_error(tcuda.cudart().cudaProfilerStop())
    """
    _core.init()
    return _cudart
