"""Statistics of the allocator after sequences of operations.

The numbers follow from PyTorch's rules: a block is a multiple of 512 bytes; blocks of at most 1 MiB
are cut from segments of 2 MiB, the others from segments of 20 MiB, from 10 MiB on from their size
rounded up to 2 MiB; a large block is split where more than 1 MiB is left.
"""

import unittest
import warnings

from adapters import Memory, Pinned, busy, cuda
from base import ARRAYS, COUNTS, KIB, METRICS, MIB, POOLS, Case, each

LEFT = 2 * MIB - 1024  # of a segment, beside a block of 1024 bytes


def small(**values):
    """Statistics of the small pool; the others of the large pool are 0."""
    return {name: {"all": value, "small_pool": value} for name, value in values.items()}


def large(**values):
    """Statistics of the large pool; those of the small pool are 0."""
    return {name: {"all": value, "large_pool": value} for name, value in values.items()}


def both(of_small, of_large):
    """Statistics of both pools; no peak is before the last operation."""
    return {
        name: {
            "all": tuple(map(sum, zip(
                of_small[name]["all"], of_large[name]["all"]))),
            "small_pool": of_small[name]["all"], "large_pool": of_large[name]["all"],
        } for name in ARRAYS}


def held(block, requested, segment, left):
    """One block of a segment, with free bytes beside it: each statistic's values."""
    return {
        "allocation": (1, 1, 1, 0), "allocated_bytes": (block, block, block, 0),
        "active": (1, 1, 1, 0), "active_bytes": (block, block, block, 0),
        "requested_bytes": (requested, requested, requested, 0),
        "segment": (1, 1, 1, 0), "reserved_bytes": (segment, segment, segment, 0),
        "inactive_split": (1, 1, 1, 0) if left else (0, 0, 0, 0),
        "inactive_split_bytes": (left, left, left, 0),
    }


ONE_SMALL = held(1024, 1000, 2 * MIB, LEFT)
ONE_LARGE = held(3 * MIB, 3 * MIB - 7, 20 * MIB, 17 * MIB)
FREED = {
    name: (0, value[1], value[2], value[2]) for name, value in ONE_SMALL.items()
} | {"segment": (1, 1, 1, 0), "reserved_bytes": (2 * MIB, 2 * MIB, 2 * MIB, 0)}

# What happens, the arrays after it, and the counts after it.
SEQUENCES = {
    "nothing": ([], small(), {}),
    "small": (["alloc a 1000"], small(**ONE_SMALL), {"num_device_alloc": 1}),
    "large": (
        [f"alloc a {3 * MIB - 7}"], large(**ONE_LARGE), {"num_device_alloc": 1}),
    "small_and_large": (
        ["alloc a 1000", f"alloc b {3 * MIB - 7}"],
        both(small(**ONE_SMALL), large(**ONE_LARGE)), {"num_device_alloc": 2}),
    "segment_of_its_own": (
        [f"alloc a {64 * MIB}"], large(**held(64 * MIB, 64 * MIB, 64 * MIB, 0)),
        {"num_device_alloc": 1}),
    "freed": (["alloc a 1000", "free a"], small(**FREED), {"num_device_alloc": 1}),
    "emptied": (
        ["alloc a 1000", "free a", "empty"],
        small(**FREED | {
            "segment": (0, 1, 1, 1), "reserved_bytes": (0, 2 * MIB, 2 * MIB, 2 * MIB)}),
        {"num_device_alloc": 1, "num_device_free": 1, "num_sync_all_streams": 1}),
    "emptied_beside_a_block": (
        ["alloc a 1000", "empty"], small(**ONE_SMALL),
        {"num_device_alloc": 1, "num_sync_all_streams": 1}),
    "reused": (
        ["alloc a 1000", "free a", "alloc b 600"],
        small(
            allocation=(1, 1, 2, 1), allocated_bytes=(1024, 1024, 2048, 1024),
            active=(1, 1, 2, 1), active_bytes=(1024, 1024, 2048, 1024),
            requested_bytes=(600, 1000, 1600, 1000), segment=(1, 1, 1, 0),
            reserved_bytes=(2 * MIB, 2 * MIB, 2 * MIB, 0), inactive_split=(1, 1, 2, 1),
            inactive_split_bytes=(LEFT, LEFT, 2 * LEFT, LEFT)),
        {"num_device_alloc": 1}),
    "first_of_two_freed": (
        ["alloc a 1000", "alloc b 1000", "free a"],
        small(
            allocation=(1, 2, 2, 1), allocated_bytes=(1024, 2048, 2048, 1024),
            active=(1, 2, 2, 1), active_bytes=(1024, 2048, 2048, 1024),
            requested_bytes=(1000, 2000, 2000, 1000), segment=(1, 1, 1, 0),
            reserved_bytes=(2 * MIB, 2 * MIB, 2 * MIB, 0), inactive_split=(2, 2, 2, 0),
            inactive_split_bytes=(LEFT, LEFT, LEFT + 1024, 1024)),
        {"num_device_alloc": 1}),
    "used_by_another_stream": (
        ["memory a 1000", "record a", "free a"],
        small(**ONE_SMALL | {
            "allocation": (0, 1, 1, 1), "allocated_bytes": (0, 1024, 1024, 1024)}),
        {"num_device_alloc": 1}),
}


class Sequences(Case):
    def run_operations(self, operations):
        live = {}
        for operation in operations:
            verb, *words = operation.split()
            if verb == "alloc":
                live[words[0]] = self.alloc(int(words[1]))
            elif verb == "memory":
                live[words[0]] = Memory(int(words[1]))
            elif verb == "record":
                stream = cuda.Stream()
                busy(stream)
                live[words[0]].record_stream(stream)
            elif verb == "free":
                memory = live.pop(words[0])
                memory.free() if isinstance(memory, Memory) else self.free(memory)
            else:
                cuda.empty_cache()

    @each(**{
        f"{sequence}_{name}": (sequence, name) for sequence in SEQUENCES for name in ARRAYS})
    def test(self, sequence, name):
        operations, arrays, _ = SEQUENCES[sequence]
        self.run_operations(operations)
        self.assert_stat(name, **arrays.get(name, {}))

    @each(**{sequence: sequence for sequence in SEQUENCES})
    def test_counts(self, sequence):
        operations, _, counts = SEQUENCES[sequence]
        self.run_operations(operations)
        self.assert_stats(**{name: counts.get(name, 0) for name in COUNTS})

    @each(**{sequence: sequence for sequence in SEQUENCES if "used" not in sequence})
    def test_peaks_reset(self, sequence):
        self.run_operations(SEQUENCES[sequence][0])
        before = cuda.memory_stats()
        cuda.reset_peak_memory_stats()
        after = cuda.memory_stats()
        for key, value in after.items():
            name = key.replace(".peak", ".current")
            self.assertEqual(value, before[name], key)

    @each(**{sequence: sequence for sequence in SEQUENCES if "used" not in sequence})
    def test_accumulated_reset(self, sequence):
        self.run_operations(SEQUENCES[sequence][0])
        before = cuda.memory_stats()
        cuda.reset_accumulated_memory_stats()
        after = cuda.memory_stats()
        for key, value in after.items():
            is_sum = key.endswith((".allocated", ".freed")) or key in COUNTS
            self.assertEqual(value, 0 if is_sum else before[key], key)


# A request, its block and its segment.
SIZES = {
    "1": (1, 512, 2 * MIB), "511": (511, 512, 2 * MIB), "512": (512, 512, 2 * MIB),
    "513": (513, 1024, 2 * MIB), "1000": (1000, 1024, 2 * MIB), "1MiB": (MIB, MIB, 2 * MIB),
    "1MiB_and_1": (MIB + 1, MIB + 512, 20 * MIB), "5MiB": (5 * MIB, 5 * MIB, 20 * MIB),
    "below_10MiB": (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    "10MiB_less_1": (10 * MIB - 1, 10 * MIB, 10 * MIB),
    "10MiB": (10 * MIB, 10 * MIB, 10 * MIB),
    "10MiB_and_1": (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    "11MiB_less_1": (11 * MIB - 1, 12 * MIB, 12 * MIB), "11MiB": (11 * MIB, 12 * MIB, 12 * MIB),
    "20MiB": (20 * MIB, 20 * MIB, 20 * MIB), "21MiB": (21 * MIB, 22 * MIB, 22 * MIB),
    "100MiB_and_1": (100 * MIB + 1, 100 * MIB + 512, 102 * MIB),
}


class Sizes(Case):
    @each(**SIZES)
    def test(self, size, block, segment):
        self.alloc(size)
        self.assert_stats(
            requested_bytes__all__current=size, allocated_bytes__all__current=block,
            reserved_bytes__all__current=segment)
        self.assertEqual(cuda.memory_allocated(), block)
        self.assertEqual(cuda.memory_reserved(), segment)

    @each(one=(1, "small_pool"), most=(MIB, "small_pool"), more=(MIB + 1, "large_pool"))
    def test_pool(self, size, pool):
        self.alloc(size)
        stats = cuda.memory_stats()
        self.assertEqual(
            {of: stats[f"allocation.{of}.current"] for of in POOLS},
            {of: int(of in ("all", pool)) for of in POOLS})

    def test_zero(self):
        before = cuda.memory_stats()
        address = cuda.caching_allocator_alloc(0)
        self.assertEqual(address, 0)
        self.assertEqual(cuda.memory_stats(), before)
        cuda.caching_allocator_delete(address)
        self.assertEqual(cuda.memory_stats(), before)

    def test_a_segment_is_full(self):
        for _ in range(2):
            self.alloc(MIB)
        self.assert_stats(segment__all__current=1, inactive_split__all__current=0,
                          inactive_split_bytes__all__current=0)
        self.alloc(1)
        self.assert_stats(segment__all__current=2, inactive_split__all__current=1)

    def test_pending_memory_is_released(self):
        stream, memory = cuda.Stream(), Memory(1000)
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        self.assert_stats(active__all__current=1, active_bytes__all__current=1024,
                          requested_bytes__all__current=1000, allocation__all__current=0)
        stream.synchronize()
        self.alloc(5 * MIB)  # looks at what has ended
        self.assert_stats(active__small_pool__current=0, active_bytes__small_pool__current=0,
                          requested_bytes__small_pool__current=0, active__small_pool__freed=1)

    def test_nothing_is_kept_without_cache(self):
        self.addCleanup(cuda.caching_allocator_enable)
        cuda.caching_allocator_enable(False)
        Memory(1000).free()
        self.assertEqual(cuda.memory_reserved(), 0)
        cuda.caching_allocator_enable()
        Memory(1000).free()
        self.assertEqual(cuda.memory_reserved(), 2 * MIB)

    def test_without_cache(self):
        self.addCleanup(cuda.caching_allocator_enable)
        cuda.caching_allocator_enable(False)
        before = cuda.memory_stats()
        memory = Memory(1000)
        after = cuda.memory_stats()
        memory.free()
        cuda.caching_allocator_enable(True)
        self.assertEqual(after, before)
        memory = Memory(1000)
        self.assertEqual(cuda.memory_allocated(), 1024)
        memory.free()


class Keys(Case):
    EXPECTED = {
        f"{name}.{pool}.{metric}" for name in ARRAYS for pool in POOLS for metric in METRICS
    } | {
        f"{name}.{metric}" for name in ("oversize_allocations", "oversize_segments")
        for metric in METRICS
    } | {*COUNTS, "max_split_size"}

    def test_all(self):
        self.assertLessEqual(self.EXPECTED, set(cuda.memory_stats()))

    def test_no_others(self):
        """PyTorch 2.15 has these besides."""
        others = {
            key for key in cuda.memory_stats() if key not in self.EXPECTED
            and not key.startswith("reserved_bytes_by_private_pools.")}
        self.assertLessEqual(others, {"num_oom_rejections"})

    def test_order(self):
        keys = list(cuda.memory_stats())
        self.assertEqual(keys, sorted(keys))

    def test_values(self):
        self.assertEqual({type(value) for value in cuda.memory_stats().values()}, {int})

    def test_no_limit_of_splits(self):
        self.assert_stats(
            max_split_size=-1, oversize_allocations__allocated=0, oversize_segments__allocated=0)

    def test_nested(self):
        self.alloc(1000)
        flat, nested = cuda.memory_stats(), cuda.memory_stats_as_nested_dict()
        for name in ARRAYS:
            for pool in POOLS:
                self.assertEqual(
                    dict(nested[name][pool]),
                    {metric: flat[f"{name}.{pool}.{metric}"] for metric in METRICS})
        self.assertEqual(nested["num_ooms"], flat["num_ooms"])
        self.assertEqual(nested["oversize_segments"]["peak"], flat["oversize_segments.peak"])

    @each(none=None, number=0, text="cuda:0", current="cuda")
    def test_device(self, device):
        self.alloc(1000)
        self.assertEqual(cuda.memory_stats(device)["allocated_bytes.all.current"], 1024)
        self.assertEqual(cuda.memory_allocated(device), 1024)


class Names(Case):
    """Functions for single statistics."""

    def setUp(self):
        super().setUp()
        self.free(self.alloc(64 * MIB))
        self.alloc(1000)

    @each(
        memory_allocated=("memory_allocated", 1024),
        max_memory_allocated=("max_memory_allocated", 64 * MIB),
        memory_reserved=("memory_reserved", 66 * MIB),
        max_memory_reserved=("max_memory_reserved", 66 * MIB),
    )
    def test(self, name, value):
        self.assertEqual(getattr(cuda, name)(), value)
        self.assertEqual(getattr(cuda, name)(0), value)
        self.assertEqual(getattr(cuda.memory, name)(device=0), value)

    def test_peaks_are_reset(self):
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(0)
        self.assertEqual(cuda.max_memory_allocated(), 1024)
        self.assertEqual(cuda.max_memory_reserved(), 2 * MIB)

    @each(
        memory_cached=("memory_cached", "memory_reserved"),
        max_memory_cached=("max_memory_cached", "max_memory_reserved"),
    )
    def test_deprecated(self, old, new):
        with self.assertWarnsRegex(FutureWarning, new):
            value = getattr(cuda, old)()
        self.assertEqual(value, getattr(cuda, new)())

    @each(allocated="reset_max_memory_allocated", cached="reset_max_memory_cached")
    def test_deprecated_resets(self, name):
        """Both reset all peaks."""
        cuda.empty_cache()
        with self.assertWarns(FutureWarning):
            getattr(cuda, name)()
        self.assertEqual(cuda.max_memory_allocated(), 1024)
        self.assertEqual(cuda.max_memory_reserved(), 2 * MIB)

    def test_results_of_resets(self):
        self.assertIsNone(cuda.reset_peak_memory_stats())
        self.assertIsNone(cuda.reset_accumulated_memory_stats())
        self.assertIsNone(cuda.empty_cache())


def size_text(value, reference):
    """A number of bytes in the table of memory_summary."""
    for unit in ("B  ", "KiB", "MiB", "GiB", "TiB"):
        if reference < 768 * 1024:
            break
        value, reference = value // 1024, reference / 1024
    return f"{value:6d} {unit}"


def count_text(value, reference):
    """A number in the table of memory_summary."""
    for unit in (" ", "K", "M"):
        if reference < 750 * 1000:
            break
        value, reference = value // 1000, reference / 1000
    return f"{value:7d} {unit} "


ROWS = (
    ("allocated_bytes", "Allocated memory", size_text),
    ("active_bytes", "Active memory", size_text),
    ("requested_bytes", "Requested memory", size_text),
    ("reserved_bytes", "GPU reserved memory", size_text),
    ("inactive_split_bytes", "Non-releasable memory", size_text),
    ("allocation", "Allocations", count_text), ("active", "Active allocs", count_text),
    ("segment", "GPU reserved segments", count_text),
    ("inactive_split", "Non-releasable allocs", count_text),
)


class Summary(Case):
    def setUp(self):
        super().setUp()
        self.alloc(1000)
        self.alloc(100 * MIB)
        self.free(self.alloc(300 * KIB))

    def expected(self, abbreviated):
        """The lines after the title."""
        stats, rule, lines = cuda.memory_stats(), "|" + "-" * 75 + "|", []

        def row(label, prefix, reference, text):
            values = [
                text(stats[f"{prefix}.{metric}"], stats[f"{reference}.{metric}"])
                for metric in METRICS]
            lines.append(f"| {label:<21} | {' | '.join(values)} |")

        for name, label, text in ROWS:
            lines.append(rule)
            for pool, words in (("all", label), ("large_pool", "      from large pool"),
                                ("small_pool", "      from small pool")):
                if pool == "all" or not abbreviated:
                    row(words, f"{name}.{pool}", f"{name}.all", text)
        for name, label in (("oversize_allocations", "Oversize allocations"),
                            ("oversize_segments", "Oversize GPU segments")):
            lines.append(rule)
            row(label, name, name, count_text)
        return lines

    @each(whole=False, abbreviated=True)
    def test_rows(self, abbreviated):
        lines = cuda.memory_summary(0, abbreviated).splitlines()
        self.assertEqual(lines[6:-1], self.expected(abbreviated))

    def test_frame(self):
        lines = cuda.memory_summary().splitlines()
        double = "|" + "=" * 75 + "|"
        self.assertEqual((lines[0], lines[4], lines[-1]), (double, double, double))
        self.assertEqual({len(line) for line in lines}, {77})
        self.assertTrue(cuda.memory_summary().endswith("|\n"))

    def test_title(self):
        lines = cuda.memory_summary(0).splitlines()
        self.assertRegex(lines[1], r"^\| {18}\S+ CUDA memory summary, device ID 0 +\|$")
        self.assertEqual(
            lines[3], f"|{'':11} CUDA OOMs: {0:<12} | {'':6} cudaMalloc retries: {0:<8}  |")
        self.assertEqual(
            lines[5],
            "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |")


HOST_KEYS = {"num_host_alloc", "num_host_free"} | {
    f"{name}.{metric}"
    for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
    for metric in METRICS
} | {
    f"{name}.{part}" for name in ("host_alloc_time", "host_free_time")
    for part in ("total", "max", "min", "count", "avg")}


class Host(Case):
    """Pinned memory."""

    def setUp(self):
        super().setUp()
        cuda.reset_peak_host_memory_stats()
        cuda.reset_accumulated_host_memory_stats()

    def test_keys(self):
        self.assertEqual(set(cuda.host_memory_stats()), HOST_KEYS)

    def test_order(self):
        keys = list(cuda.host_memory_stats())
        self.assertEqual(keys, sorted(keys))

    @each(power=(4096, 4096), between=(5000, 8192), more=(3 * MIB, 4 * MIB))
    def test_rounding(self, size, block):
        before = cuda.host_memory_stats()
        memory = Pinned(size)
        after = cuda.host_memory_stats()
        memory.free()
        self.assertEqual(after["active_bytes.current"] - before["active_bytes.current"], block)
        self.assertEqual(after["active_requests.current"] - before["active_requests.current"], 1)

    def test_free(self):
        before = cuda.host_memory_stats()
        Pinned(4096).free()
        after = cuda.host_memory_stats()
        for name, freed in (("active_bytes", 4096), ("active_requests", 1)):
            self.assertEqual(after[f"{name}.current"], before[f"{name}.current"])
            self.assertEqual(after[f"{name}.freed"] - before[f"{name}.freed"], freed)

    def test_freed_memory_is_kept(self):
        Pinned(1 << 16).free()
        before = cuda.host_memory_stats()
        memory = Pinned((1 << 16) - 1)
        self.assertEqual(
            cuda.host_memory_stats()["num_host_alloc"], before["num_host_alloc"])
        memory.free()
        self.assertEqual(
            cuda.host_memory_stats()["allocated_bytes.current"], before["allocated_bytes.current"])

    def test_resets(self):
        Pinned(1 << 20).free()
        cuda.reset_peak_host_memory_stats()
        cuda.reset_accumulated_host_memory_stats()
        stats = cuda.host_memory_stats()
        self.assertEqual(stats["active_bytes.peak"], stats["active_bytes.current"])
        self.assertEqual(
            (stats["active_bytes.allocated"], stats["active_bytes.freed"],
             stats["host_alloc_time.count"]), (0, 0, 0))

    def test_nested(self):
        flat, nested = cuda.host_memory_stats(), cuda.host_memory_stats_as_nested_dict()
        self.assertEqual(nested["active_bytes"]["peak"], flat["active_bytes.peak"])
        self.assertEqual(nested["num_host_alloc"], flat["num_host_alloc"])


class Warnings(Case):
    def test_new_names_do_not_warn(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cuda.memory_reserved()
            cuda.max_memory_reserved()
            cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    unittest.main()
