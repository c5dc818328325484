"""What the files of cases share."""

from __future__ import annotations

import gc
import unittest
from collections.abc import Callable
from typing import Any

from adapters import cuda, fill, read

KIB, MIB = 1 << 10, 1 << 20
POOLS = ("all", "small_pool", "large_pool")
METRICS = ("current", "peak", "allocated", "freed")
# The statistics that have POOLS and METRICS.
ARRAYS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes",
)
COUNTS = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
    "num_device_free",
)


def each(**cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a case of each keyword: it is the end of the name, its value the argument.

    A tuple is several arguments.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function.cases = cases  # type: ignore[attr-defined]
        return function

    return decorate


def two_devices(function: Callable[..., None]) -> Callable[..., None]:
    """For a case that needs two devices."""
    return unittest.skipIf(cuda.device_count() < 2, "one device")(function)


class Case(unittest.TestCase):
    """Cases that begin with device 0, its default stream, no memory, and statistics of 0."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, function in list(vars(cls).items()):
            for label, value in getattr(function, "cases", {}).items():
                def case(self: Any, function: Any = function, value: Any = value) -> None:
                    function(self, *(value if isinstance(value, tuple) else (value,)))

                setattr(cls, f"{name}_{label}", case)
            if hasattr(function, "cases"):
                delattr(cls, name)

    def setUp(self) -> None:
        self.live: set[int] = set()
        cuda.set_device(0)
        cuda.set_stream(cuda.default_stream(0))
        gc.collect()
        cuda.synchronize()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        cuda.reset_accumulated_memory_stats()
        self.assertEqual(cuda.memory_allocated(), 0)

    def alloc(self, size: int, stream: cuda.Stream | None = None, device: int = 0) -> int:
        """Allocates memory, which the end of the case frees."""
        address = cuda.caching_allocator_alloc(size, device, stream)
        self.live.add(address)
        self.addCleanup(self.free_if_live, address)
        return address

    def free(self, address: int) -> None:
        """Frees memory."""
        self.live.remove(address)
        cuda.caching_allocator_delete(address)

    def free_if_live(self, address: int) -> None:
        """Frees memory, unless `free` did."""
        if address in self.live:
            self.free(address)

    def assert_stat(self, name: str, **pools: tuple[int, int, int, int]) -> None:
        """Compares a statistic: POOLS with their METRICS in order; those not named are 0."""
        stats = cuda.memory_stats()
        expected = {pool: pools.get(pool, (0, 0, 0, 0)) for pool in POOLS}
        actual = {
            pool: tuple(stats[f"{name}.{pool}.{metric}"] for metric in METRICS) for pool in POOLS}
        self.assertEqual(actual, expected, name)

    def assert_stats(self, **expected: int) -> None:
        """Compares statistics; a key has __ in place of points."""
        stats = cuda.memory_stats()
        keys = {name.replace("__", "."): value for name, value in expected.items()}
        self.assertEqual({key: stats[key] for key in keys}, keys)


class GraphCase(Case):
    """Cases with 512 bytes that begin with zeros; graphs fill the first."""

    def setUp(self) -> None:
        super().setUp()
        self.address = self.alloc(512)
        fill(self.address, 0)
        cuda.synchronize()

    def tearDown(self) -> None:
        cuda.synchronize()
        cuda.set_stream(cuda.default_stream())

    def capture(
        self, value: int = 7, graph: cuda.CUDAGraph | None = None, **options: Any
    ) -> cuda.CUDAGraph:
        """A graph that fills the memory with a value."""
        graph = cuda.CUDAGraph() if graph is None else graph
        with cuda.graph(graph, **options):
            fill(self.address, value)
        return graph

    def large(self) -> int:
        """Reserved bytes of large blocks; a graph's generator may have small ones."""
        return cuda.memory_stats()["reserved_bytes.large_pool.current"]

    def assert_memory(self, value: int) -> None:
        """Compares the memory that `capture` fills."""
        self.assertEqual(read(self.address), [value] * 4)
