"""Devices: their choice, properties and synchronization."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, runtime_checkable

from . import _core
from .errors import InvalidArgumentError, InvalidDeviceError

if TYPE_CHECKING:
    import uuid

__all__ = [
    "can_device_access_peer", "current_blas_handle", "current_device", "current_solver_handle",
    "device", "device_count", "device_of", "get_arch_list", "get_device_capability",
    "get_device_name", "get_device_properties", "get_gencode_flags", "get_sync_debug_mode", "init",
    "ipc_collect", "is_available", "is_bf16_supported", "is_initialized", "is_tf32_supported",
    "set_device", "set_sync_debug_mode", "synchronize",
]


@runtime_checkable
class _DeviceLike(Protocol):
    """A device of this package or PyTorch."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int | None: ...


# An ordinal, "cuda", "cuda:1" or an object for a device; None: the current one.
Device = int | str | SupportsIndex | _DeviceLike | None

_SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}
_DLPACK_DEVICES = (_core.DEVICE_CUDA, _core.DEVICE_CUDA_MANAGED)


def index_of(device: Device) -> int:
    """The ordinal of a device; -1 for the current one."""
    if device is None:
        return -1
    if type(device) is int:
        return device
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if kind != "cuda" or (colon and not number.isdecimal()):
            raise InvalidArgumentError(f"{device} is no CUDA device: use an ordinal or cuda:0")
        return int(number) if colon else -1
    if isinstance(device, _DeviceLike):
        if device.type != "cuda":
            raise InvalidArgumentError(f"{device} is no CUDA device: use an ordinal or cuda:0")
        return -1 if device.index is None else device.index
    return operator.index(device)


def _existing(device: Device) -> int:
    """The ordinal of a device, which is not negative; -1 for the current one."""
    index = index_of(device)
    if index < 0 and isinstance(device, int):
        raise InvalidDeviceError(f"the ordinal of a device is {device}, which is negative")
    return index


class device:
    """A device, and a context in which it is the current one.

    >>> with tcuda.device(0):
    ...     tcuda.current_device()
    0

    Where PyTorch returns a torch.device, as `Stream.device`, this package returns one of these.
    """

    __slots__ = ("idx", "prev_idx")
    type = "cuda"

    def __init__(self, device: Device) -> None:
        if type(device) is int:
            self.idx = device
        else:
            self.idx = index_of(device)
            if self.idx < 0:
                self.idx = current_device()

    @property
    def index(self) -> int:
        """The ordinal."""
        return self.idx

    def __enter__(self) -> None:
        self.prev_idx = _core.device_exchange(self.idx)

    def __exit__(self, *exception: object) -> None:
        _core.device_set(self.prev_idx)

    def __eq__(self, other: object) -> bool:
        return self.idx == other.idx if isinstance(other, device) else NotImplemented

    def __hash__(self) -> int:
        return hash(("cuda", self.idx))

    def __str__(self) -> str:
        return f"cuda:{self.idx}"

    def __repr__(self) -> str:
        return f"device(type='cuda', index={self.idx})"


class device_of(device):
    """A context in which the device of an object is the current one.

    The object is an address, or has `__dlpack_device__`, as arrays have. One that is not in
    device memory changes nothing.
    """

    __slots__ = ()

    def __init__(self, obj: Any) -> None:
        if isinstance(obj, int):
            super().__init__(_core.device_of(obj))
        else:
            kind, index = obj.__dlpack_device__()
            super().__init__(int(index) if kind in _DLPACK_DEVICES else -1)


def init() -> None:
    """Initializes the library; other functions do it when they need it."""
    _core.init()


def is_initialized() -> bool:
    """Is the library initialized?"""
    return _core.is_initialized()


def is_available() -> bool:
    """Is there a usable GPU, or a simulated one? Never fails."""
    return _core.is_available()


device_count = _core.device_count


def current_device() -> int:
    """The ordinal of this thread's current device."""
    return _core.device_current()


def set_device(device: Device) -> None:
    """Makes a device current for this thread; a negative ordinal changes nothing."""
    index = index_of(device)
    if index < 0 and type(device) is not int:
        raise InvalidArgumentError(
            f"{device} names no device: pass an ordinal, or cuda:0 with its number")
    _core.device_set(index)


def synchronize(device: Device = None) -> None:
    """Waits for all work of a device."""
    _core.device_synchronize(index_of(device))


def get_device_name(device: Device = None) -> str:
    """The marketing name of a device."""
    return _core.device_name(_existing(device))


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """The compute capability of a device, major and minor."""
    return _core.device_capability(_existing(device))


# What PyTorch calls a member of tcuda_device_info that has another name there.
_PROPERTY_MEMBERS = {
    "total_memory": "total_memory_bytes",
    "L2_cache_size": "l2_cache_bytes",
    "shared_memory_per_block": "shared_memory_per_block_bytes",
    "shared_memory_per_block_optin": "shared_memory_per_block_optin_bytes",
    "shared_memory_per_multiprocessor": "shared_memory_per_multiprocessor_bytes",
    "clock_rate": "clock_rate_khz",
    "memory_clock_rate": "memory_clock_rate_khz",
    "memory_bus_width": "memory_bus_width_bits",
}


class _CudaDeviceProperties:
    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: uuid.UUID
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int
    L2_cache_size: int
    is_integrated: int
    is_multi_gpu_board: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    warp_size: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    regs_per_multiprocessor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int

    def __init__(self, info: dict[str, Any]) -> None:
        for name in _CudaDeviceProperties.__annotations__:
            setattr(self, name, info[_PROPERTY_MEMBERS.get(name, name)])

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def get_device_properties(device: Device = None) -> _CudaDeviceProperties:
    """The fixed properties of a device.

    >>> tcuda.get_device_properties(0).warp_size
    32
    """
    import uuid  # most programs do not need it

    info = _core.device_properties(_existing(device))
    info["uuid"] = uuid.UUID(bytes=info["uuid"])
    return _CudaDeviceProperties(info)


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Can a device reach the memory of another one?"""
    return _core.device_can_access_peer(_existing(device), _existing(peer_device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Has the current device bfloat16 numbers, in hardware (8.0 and newer) or by emulation?

    False without a device.
    """
    return is_available() and (including_emulation or _core.device_capability(-1) >= (8, 0))


def is_tf32_supported() -> bool:
    """Has the current device TF32 numbers (8.0 and newer)? False without a device."""
    return is_bf16_supported(including_emulation=False)


def get_arch_list() -> list[str]:
    """The architectures of the kernels in the library."""
    return _core.arch_list().split()


def get_gencode_flags() -> str:
    """The architectures of the kernels in the library, as flags of nvcc."""
    return _core.gencode_flags()


def get_sync_debug_mode() -> int:
    """The mode of `set_sync_debug_mode`, as a number."""
    return _core.sync_debug_mode_get()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What hidden waits for a device do: 0 or "default", 1 or "warn", 2 or "error"."""
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError(
                "invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_DEBUG_MODES[debug_mode]
    _core.sync_debug_mode_set(debug_mode)


def current_blas_handle() -> int:
    """This thread's cublasHandle_t of the current device, set to the current stream."""
    return _core.blas_handle(-1)


def current_solver_handle() -> int:
    """This thread's cusolverDnHandle_t of the current device, set to the current stream."""
    return _core.solver_handle(-1)


def ipc_collect() -> None:
    """Frees exported memory that no other process uses any more."""
    _core.ipc_collect()
