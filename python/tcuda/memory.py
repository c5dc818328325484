"""The caching allocator: memory, statistics, snapshots, pools."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from . import _core
from .devices import Device, index_of
from .handles import Owner, Unique
from .streams import Stream

__all__ = [
    "CUDAPluggableAllocator", "MemPool", "caching_allocator_alloc", "caching_allocator_delete",
    "caching_allocator_disabled", "caching_allocator_enable", "change_current_allocator",
    "empty_cache", "get_allocator_backend", "get_per_process_memory_fraction", "host_memory_stats",
    "host_memory_stats_as_nested_dict", "list_gpu_processes", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_cached", "memory_reserved", "memory_snapshot", "memory_stats",
    "memory_stats_as_nested_dict", "memory_summary", "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_host_memory_stats", "reset_peak_memory_stats", "set_per_process_memory_fraction",
    "use_mem_pool",
]

_MOST_ENTRIES = 1 << 28  # of a history, for each device
_FRAMES_FOR = {
    None: _core.FRAMES_NONE,
    "state": _core.FRAMES_STATE,
    "alloc": _core.FRAMES_ALLOC,
    "all": _core.FRAMES_ALL,
}
_HISTORY_MODES = {
    None: _core.HISTORY_OFF,
    "state": _core.HISTORY_STATE,
    "all": _core.HISTORY_ALL,
}


def caching_allocator_alloc(
    size: int, device: Device = None, stream: Stream | int | None = None
) -> int:
    """Allocates memory for work on a stream, by default the current one; returns its address.

    The stream is a `Stream` or a cudaStream_t.

    >>> address = tcuda.caching_allocator_alloc(1000)
    >>> tcuda.memory_allocated()  # rounded up to 512 bytes
    1024
    >>> tcuda.caching_allocator_delete(address)
    """
    if stream is None:
        return _core.malloc(size, index_of(device), None)
    if isinstance(stream, Stream):
        return _core.malloc(size, index_of(device), stream._handle)
    if isinstance(stream, int):
        return _core.malloc_native(size, index_of(device), stream)
    raise TypeError(f"expected a stream or its cudaStream_t, not {stream!r}")


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory of `caching_allocator_alloc`, in the order of its stream."""
    _core.free(mem_ptr)


def record_stream(mem_ptr: int, stream: Stream | None = None) -> None:
    """Keeps memory, once it is freed, until the work is done that a stream has by then. (+)"""
    _core.record_stream(mem_ptr, None if stream is None else stream._handle)


def caching_allocator_enable(value: bool = True) -> None:
    """Turns the cache of the allocator on or off, for the process."""
    _core.memory_caching_enable(value)


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """A context without the cache of the allocator, for the process."""
    was_enabled = _core.memory_caching_is_enabled()
    _core.memory_caching_enable(0)
    try:
        yield
    finally:
        _core.memory_caching_enable(was_enabled)


def empty_cache() -> None:
    """Gives unused memory of the cache back to the driver."""
    _core.memory_empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of a device, as the driver reports them."""
    return _core.memory_info(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the cache to a part of the memory of a device."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    _core.memory_fraction_set(index_of(device), fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The limit of `set_per_process_memory_fraction`; 1.0 if there is none."""
    return _core.memory_fraction_get(index_of(device))


def get_allocator_backend() -> str:
    """The backend of the allocator: "native", "cudaMallocAsync" or "pluggable"."""
    return _core.allocator_backend()


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """A nested dictionary with keys that are joined by points, sorted."""
    flat: dict[str, Any] = {}

    def add(prefix: str, inner: dict[str, Any]) -> None:
        for key, value in inner.items():
            if type(value) is dict:
                add(f"{prefix}{key}.", value)
            else:
                flat[prefix + key] = value

    add("", nested)
    return {key: flat[key] for key in sorted(flat)}


def _stats(device: Device) -> dict[str, Any]:
    """The statistics of the allocator, nested; {} before the library is initialized."""
    if not _core.is_initialized():
        return {}
    stats: dict[str, Any] = json.loads(_core.memory_stats_json(index_of(device)))
    return stats


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All statistics of the allocator, "allocated_bytes.all.peak" and others.

    Empty before the library is initialized. The keys are those of torch.cuda.memory_stats.
    """
    return _flat(_stats(device))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """The statistics of `memory_stats` as nested dictionaries; the id of a pool is a tuple."""
    stats = _stats(device)
    if pools := stats.get("reserved_bytes_by_private_pools"):
        stats["reserved_bytes_by_private_pools"] = {
            tuple(map(int, pool.split("_"))): value for pool, value in pools.items()
        }
    return stats


def memory_allocated(device: Device = None) -> int:
    """Bytes of all allocated blocks."""
    return _core.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The peak of `memory_allocated`."""
    return _core.memory_max_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes that the allocator has from the driver."""
    return _core.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The peak of `memory_reserved`."""
    return _core.memory_max_reserved(index_of(device))


def _warn(old: str, new: str) -> None:
    warnings.warn(f"`tcuda.{old}` is deprecated: use `tcuda.{new}`", FutureWarning, stacklevel=3)


def memory_cached(device: Device = None) -> int:
    """Deprecated: `memory_reserved`."""
    _warn("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """Deprecated: `max_memory_reserved`."""
    _warn("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets all peaks to the present values."""
    _core.memory_reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the counters of all that was allocated and freed to 0."""
    _core.memory_reset_accumulated(index_of(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """Deprecated: `reset_peak_memory_stats`."""
    _warn("reset_max_memory_allocated", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Device = None) -> None:
    """Deprecated: `reset_peak_memory_stats`."""
    _warn("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The statistics as a table to read."""
    return _core.memory_summary(index_of(device), abbreviated)


def list_gpu_processes(device: Device = None) -> str:
    """The processes that compute on a GPU, and the memory of each, as text."""
    return _core.memory_processes(index_of(device))


def host_memory_stats() -> dict[str, Any]:
    """All statistics of pinned memory; empty before the library is initialized."""
    return _flat(host_memory_stats_as_nested_dict())


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The statistics of `host_memory_stats` as nested dictionaries; times in microseconds."""
    if not _core.is_initialized():
        return {}
    stats = _core.host_memory_stats()
    for name in ("host_alloc_time", "host_free_time"):
        stats[name] = {key.removesuffix("_us"): value for key, value in stats[name].items()}
    return stats


def reset_peak_host_memory_stats() -> None:
    """Sets the peaks of pinned memory to the present values."""
    _core.host_memory_reset_peak()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the counters of pinned memory to 0."""
    _core.host_memory_reset_accumulated()


def _unpickled(snapshot: int) -> dict[str, Any]:
    """The content of a snapshot, which this destroys."""
    try:
        content: dict[str, Any] = pickle.loads(_core.memory_snapshot_pickle(snapshot))
    finally:
        _core.memory_snapshot_destroy(snapshot)
    return content


def _segments(snapshot: int) -> list[dict[str, Any]]:
    """The segments of a snapshot, which this destroys."""
    segments: list[dict[str, Any]] = _unpickled(snapshot)["segments"]
    return segments


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The segments of all devices with their blocks; with an id, those of that pool."""
    segments = _segments(_core.memory_snapshot_create(include_traces))
    if mempool_id is None:
        return segments
    return [segment for segment in segments if segment["segment_pool_id"] == mempool_id]


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Segments, recorded history and settings; `device` has no effect, as in PyTorch."""
    return _unpickled(_core.memory_snapshot_create(1))


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a snapshot to a file, which https://pytorch.org/memory_viz opens."""
    snapshot = _core.memory_snapshot_create(1)
    try:
        content = _core.memory_snapshot_pickle(snapshot)
    finally:
        _core.memory_snapshot_destroy(snapshot)
    with open(filename, "wb") as file:
        file.write(content)


def _record_memory_history(
    enabled: str | None = "all", context: str | None = "all", stacks: str = "all",
    max_entries: int = sys.maxsize, device: Device = None, clear_history: bool = False,
    skip_actions: list[str] | None = None, record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Records what the allocator does, for snapshots; enabled=None stops it and clears the history.

    Stacks are those of Python; stacks="all" adds those of C. `device` has no effect, as in
    PyTorch. At most 2**28 entries are kept for each device.
    """
    if enabled not in _HISTORY_MODES:
        raise ValueError(f"expected 'state' or 'all' or None for enabled, not {enabled!r}")
    if context not in _FRAMES_FOR:
        raise ValueError(f"expected 'state', 'alloc', 'all' or None for context, not {context!r}")
    if stacks not in ("python", "all"):
        raise ValueError(f"expected 'python' or 'all' for stacks, not {stacks!r}")
    if max_entries < 1:
        raise ValueError(f"expected at least 1 for max_entries, not {max_entries}")
    flags = (
        (_core.RECORD_CLEAR if clear_history or enabled is None else 0)
        | (_core.RECORD_HOST if record_pinned_host_memory else 0)
        | (0 if record_cuda else _core.RECORD_NO_DEVICE)
        | (_core.RECORD_NATIVE_FRAMES if stacks == "all" else 0)
    )
    _core.memory_record_history(
        _HISTORY_MODES[enabled], min(max_entries, _MOST_ENTRIES), _FRAMES_FOR[context], flags,
        ",".join(skip_actions or ()) or None, context is not None)


def _set_memory_metadata(metadata: str) -> None:
    """Sets a text that entries of the history of this thread have as `user_metadata`."""
    _core.memory_metadata_set(metadata)


def _get_memory_metadata() -> str:
    """The text of `_set_memory_metadata`; "" if there is none."""
    return _core.memory_metadata_get()


class _Observer(Unique):
    """A function that the library calls until `remove`."""

    __slots__ = ("_handle",)
    _handle: int

    def remove(self) -> None:
        """Ends the calls; a second call of this does nothing."""
        handle, self._handle = self._handle, 0
        _core.observer_destroy(handle)


class OutOfMemoryObserver(_Observer):
    """A function that is called before an allocation fails for want of memory. (+)

    It gets device, bytes of the request, limit and free bytes. Where it frees memory and returns
    true, the allocation is tried once more. It is called until `remove`.
    """

    __slots__ = ()

    def __init__(self, callback: Callable[[int, int, int, int], object]) -> None:
        self._handle = _core.memory_on_out_of_memory(callback)


class RejectionObserver(_Observer):
    """A function that is called when the memory fraction refuses an allocation. (+)

    It gets device, bytes of the request, allocated bytes and the bytes of the device, and is
    called with the setting throw_on_cudamalloc_oom:True alone. It cannot change the outcome.
    """

    __slots__ = ()

    def __init__(self, callback: Callable[[int, int, int, int], object]) -> None:
        self._handle = _core.memory_on_rejection(callback)


class MemoryEventObserver(_Observer):
    """A function that is called for each event of the allocators, until `remove`. (+)

    It gets a dictionary with the members of tcuda_memory_event; `action` is one of
    `_core.ACTION_*`. It runs within the operation, with locks of the library held: it must not
    call this package, nor may another thread hold the global interpreter lock while it is in the
    library, as C++ code of another package may.

    >>> sizes = []
    >>> observer = tcuda.memory.MemoryEventObserver(lambda event: sizes.append(event["bytes"]))
    >>> tcuda.caching_allocator_delete(tcuda.caching_allocator_alloc(1000))
    >>> observer.remove()
    >>> sizes[-3:]  # allocated, freed, free again
    [1000, 1000, 1000]
    """

    __slots__ = ()

    def __init__(self, callback: Callable[[dict[str, Any]], object]) -> None:
        self._handle = _core.memory_on_event(callback)


class CUDAPluggableAllocator(Owner):
    """An allocator of another library: functions as PyTorch's allocators have them.

    They are `void *alloc(ssize_t, int, cudaStream_t)` and
    `void free(void *, ssize_t, int, cudaStream_t)`.
    """

    __slots__ = ()
    _destroy = _core.pluggable_allocator_destroy

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        self._handle = _core.pluggable_allocator_load(
            path_to_so_file, alloc_fn_name, free_fn_name)

    @classmethod
    def from_pointers(cls, alloc_fn: int, free_fn: int) -> CUDAPluggableAllocator:
        """An allocator of functions that are given by their addresses, as of ctypes. (+)

        They are valid as long as the process runs: the allocator may free its memory last.
        """
        return cls._owning(_core.pluggable_allocator_create(alloc_fn, free_fn))


def change_current_allocator(allocator: CUDAPluggableAllocator) -> None:
    """Makes another library's allocator the current one, before memory was allocated."""
    _core.allocator_set_current(allocator._handle)


class MemPool(Owner):
    """A private pool: memory for the allocations in `use_mem_pool` alone.

    With `use_on_oom` other allocations may use its free memory before they fail; with `no_split`
    each of its segments is one block.

    >>> pool = tcuda.MemPool()
    >>> with tcuda.use_mem_pool(pool):
    ...     address = tcuda.caching_allocator_alloc(1 << 20)
    >>> pool.snapshot()[0]["segment_pool_id"] == pool.id
    True
    >>> tcuda.caching_allocator_delete(address)
    """

    __slots__ = ("_allocator",)
    _destroy = _core.mem_pool_destroy
    _allocator: CUDAPluggableAllocator | None
    _live: ClassVar[weakref.WeakValueDictionary[int, MemPool]] = weakref.WeakValueDictionary()

    def __init__(
        self, allocator: CUDAPluggableAllocator | None = None, use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        flags = (_core.MEM_POOL_USE_ON_OOM if use_on_oom else 0) | (
            _core.MEM_POOL_NO_SPLIT if no_split else 0)
        self._handle = _core.mem_pool_create(
            None if allocator is None else allocator._handle, flags)
        self._allocator = allocator
        self._live[self._handle] = self

    @classmethod
    def _owning(cls, handle: int) -> MemPool:
        self = super()._owning(handle)
        self._allocator = None
        cls._live[handle] = self
        return self

    @classmethod
    def _of(cls, pool: MemPool | tuple[int, int]) -> MemPool:
        """A pool, or the one that has these numbers and an object."""
        if isinstance(pool, MemPool):
            return pool
        for found in list(cls._live.values()):
            if found.id == pool:
                return found
        raise ValueError(f"no MemPool has the id {pool!r}: keep its object while the id is used")

    @property
    def id(self) -> tuple[int, int]:
        """The two numbers that identify the pool in snapshots and statistics."""
        return _core.mem_pool_id(self._handle)

    @property
    def allocator(self) -> CUDAPluggableAllocator | None:
        """The source of the pool's segments; None: the driver."""
        return self._allocator

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, MemPool) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def use_count(self) -> int:
        """The number of references to the pool: this object's and those of graphs and contexts."""
        return _core.mem_pool_use_count(self._handle)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The segments of the pool with their blocks."""
        return _segments(_core.mem_pool_snapshot(self._handle, include_traces))


@contextlib.contextmanager
def use_mem_pool_for_streams(
    pool: MemPool, filter: Callable[[int], object], device: Device = None
) -> Iterator[None]:
    """A context in which all threads' allocations for some streams come from a pool. (+)

    `filter` gets the cudaStream_t of each allocation on the device and returns whether the pool
    serves it. As a callback of `MemoryEventObserver`, it must not call this package.
    """
    index = index_of(device)
    if index < 0:
        index = _core.device_current()
    _core.mem_pool_begin_streams(pool._handle, index, filter)
    try:
        yield
    finally:
        _core.mem_pool_end_streams(pool._handle, index)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """A context in which this thread's allocations on a device come from a pool."""
    index = index_of(device)
    if index < 0:
        index = _core.device_current()
    _core.mem_pool_begin(pool._handle, index)
    try:
        yield
    finally:
        _core.mem_pool_end(pool._handle, index)
