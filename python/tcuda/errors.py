"""The exceptions of this package."""

from . import _core

__all__ = ["CudaError", "InvalidArgumentError", "InvalidDeviceError", "OutOfMemoryError"]


class CudaError(RuntimeError):
    """A call failed.

    `status` is the name of the status in tcuda.h, without its prefix, for example
    "INVALID_DEVICE"; `code` is the native code of the driver or another library, 0 if there is
    none.
    """

    status: str
    code: int


class OutOfMemoryError(CudaError):
    """There is not enough device memory, after all reclaiming and retrying."""


class InvalidArgumentError(CudaError, ValueError):
    """An argument is out of range or malformed."""

    status = "INVALID_ARGUMENT"
    code = 0


class InvalidDeviceError(CudaError, AssertionError):
    """A device does not exist."""

    status = "INVALID_DEVICE"
    code = 0


def error_for(status: int, message: str, code: int) -> CudaError:
    """The exception for a status; `_core` raises it."""
    kinds: dict[int, type[CudaError]] = {
        _core.STATUS_OUT_OF_MEMORY: OutOfMemoryError,
        _core.STATUS_INVALID_ARGUMENT: InvalidArgumentError,
        _core.STATUS_INVALID_DEVICE: InvalidDeviceError,
    }
    error = kinds.get(status, CudaError)(message)
    error.status = _core.status_name(status).removeprefix("TCUDA_STATUS_")
    error.code = code
    return error
