"""The caching allocator: numbers are those that PyTorch's rules give."""

import ctypes
import gc
import pathlib
import pickle
import tempfile
import unittest
import warnings

import tcuda
from support import GIB, MIB, OTHER, SIMULATED, TOTAL, TestCase, two_devices
from tcuda import _core


class MemoryTest(TestCase):
    def setUp(self):
        super().setUp()
        tcuda.empty_cache()
        tcuda.reset_peak_memory_stats()
        tcuda.reset_accumulated_memory_stats()
        self.assertEqual(tcuda.memory_allocated(), 0)


class Allocation(MemoryTest):
    def test_sizes_are_rounded_to_512_bytes(self):
        for size, rounded in ((1, 512), (512, 512), (513, 1024), (3 * MIB + 1, 3 * MIB + 512)):
            address = self.allocate(size)
            self.assertEqual(address % 512, 0)
            self.assertEqual(tcuda.memory_allocated(), rounded)
            self.free(address)
        self.assertEqual(tcuda.caching_allocator_alloc(0), 0)
        self.assertEqual(tcuda.memory_allocated(), 0)

    def test_streams(self):
        stream = tcuda.Stream(OTHER)
        for of_stream in (stream, stream.cuda_stream):
            address = self.allocate(512, OTHER, of_stream)
            self.assertEqual(tcuda.memory_allocated(OTHER), 512)
            tcuda.memory.record_stream(address, tcuda.Stream(OTHER))
            self.free(address)
        self.assertEqual(tcuda.memory_allocated(f"cuda:{OTHER}"), 0)

    @two_devices
    def test_devices(self):
        self.allocate(512, 1)
        self.assertEqual((tcuda.memory_allocated(1), tcuda.memory_allocated(0)), (512, 0))

    def test_memory_that_was_not_allocated(self):
        address = self.allocate(512)
        self.free(address)
        for pointer in (address, 1):
            with self.assertRaises(tcuda.CudaError) as raised:
                tcuda.caching_allocator_delete(pointer)
            self.assertEqual(raised.exception.status, "INVALID_POINTER")

    def test_peaks(self):
        first = self.allocate(4 * MIB)
        self.free(first)
        self.allocate(MIB)
        self.assertEqual(tcuda.max_memory_allocated(), 4 * MIB)
        self.assertGreaterEqual(tcuda.memory_reserved(), MIB)
        self.assertGreaterEqual(tcuda.max_memory_reserved(), 4 * MIB)
        tcuda.reset_peak_memory_stats()
        self.assertEqual(tcuda.max_memory_allocated(), MIB)

    def test_out_of_memory(self):
        with self.assertRaises(tcuda.OutOfMemoryError) as raised:
            self.allocate(TOTAL + GIB)
        self.assertIsInstance(raised.exception, RuntimeError)
        self.assertEqual(raised.exception.status, "OUT_OF_MEMORY")
        size = f"{(TOTAL + GIB) / GIB:.2f}"
        self.assertRegex(str(raised.exception),
                         rf"^CUDA out of memory. Tried to allocate {size} GiB. GPU 0 ")
        self.assertEqual(tcuda.memory_stats()["num_ooms"], 1)

    def test_fraction(self):
        self.assertEqual(tcuda.get_per_process_memory_fraction(), 1.0)
        tcuda.set_per_process_memory_fraction(0.25)
        self.assertEqual(tcuda.get_per_process_memory_fraction(), 0.25)
        self.assertRaises(tcuda.OutOfMemoryError, self.allocate, TOTAL * 5 // 16)
        self.assertRaises(ValueError, tcuda.set_per_process_memory_fraction, 1.5)
        self.assertRaises(TypeError, tcuda.set_per_process_memory_fraction, 1)

    def test_without_cache(self):
        with tcuda.caching_allocator_disabled():
            self.assertFalse(_core.memory_caching_is_enabled())
        self.assertTrue(_core.memory_caching_is_enabled())
        tcuda.caching_allocator_enable(False)
        tcuda.caching_allocator_enable()
        self.assertTrue(_core.memory_caching_is_enabled())

    def test_mem_get_info(self):
        free, total = tcuda.mem_get_info()
        self.assertEqual(total, TOTAL)
        if SIMULATED:
            self.assertEqual(total, tcuda.get_device_properties().total_memory)
        self.assertLessEqual(free, total)
        self.assertEqual(tcuda.get_allocator_backend(), "native")
        self.assertRegex(
            tcuda.list_gpu_processes(),
            r"^GPU:0\n(process +\d+ uses +\d+\.\d{3} MB|no processes are running)")


class Statistics(MemoryTest):
    def test_flat(self):
        for size in (100, 2 * MIB):
            self.allocate(size)
        stats = tcuda.memory_stats()
        self.assertEqual(list(stats), sorted(stats))
        for key, value in {
            "allocation.all.current": 2, "allocation.small_pool.current": 1,
            "allocation.large_pool.allocated": 1, "allocated_bytes.all.peak": 2 * MIB + 512,
            "requested_bytes.all.current": 2 * MIB + 100, "allocation.all.freed": 0,
            "num_ooms": 0, "max_split_size": -1,
        }.items():
            self.assertEqual(stats[key], value, key)

    def test_nested_has_the_same_values(self):
        pool = tcuda.MemPool()
        with tcuda.use_mem_pool(pool):
            self.allocate(512)
        flat, nested = tcuda.memory_stats(), tcuda.memory_stats_as_nested_dict()
        self.assertEqual(
            nested["active"]["small_pool"]["current"], flat["active.small_pool.current"])
        key = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
        of_pool = nested["reserved_bytes_by_private_pools"][pool.id]["all"]["current"]
        self.assertGreaterEqual(of_pool, 512)
        self.assertEqual(flat[key], of_pool)

    def test_of_pinned_memory(self):
        tcuda.reset_accumulated_host_memory_stats()
        tcuda.reset_peak_host_memory_stats()
        pinned = _core.host_malloc(1000)
        self.addCleanup(_core.host_free, pinned)
        stats = tcuda.host_memory_stats()
        self.assertEqual(list(stats), sorted(stats))
        self.assertEqual(stats["active_bytes.current"], 1024)
        self.assertLessEqual(stats["host_alloc_time.min"], stats["host_alloc_time.max"])
        self.assertEqual(
            tcuda.host_memory_stats_as_nested_dict()["active_requests"]["current"], 1)

    def test_summary(self):
        lines = tcuda.memory_summary(0).splitlines()
        self.assertEqual({len(line) for line in lines}, {77})
        self.assertIn("device ID 0", lines[1])
        self.assertLess(len(tcuda.memory_summary(0, abbreviated=True).splitlines()), len(lines))

    def test_deprecated_names(self):
        for old, new in (
            ("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved"),
            ("reset_max_memory_allocated", "reset_peak_memory_stats"),
            ("reset_max_memory_cached", "reset_peak_memory_stats"),
        ):
            with self.assertWarnsRegex(FutureWarning, new) as warned:
                result = getattr(tcuda, old)()
            self.assertEqual(warned.filename, __file__)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(result, getattr(tcuda, new)())


class Snapshots(MemoryTest):
    def record(self, **options):
        tcuda.memory._record_memory_history(**options)
        self.addCleanup(tcuda.memory._record_memory_history, None)

    def test_segments(self):
        address = self.allocate(1000)
        blocks = [block for segment in tcuda.memory_snapshot() for block in segment["blocks"]
                  if block["state"] == "active_allocated"]
        self.assertEqual([(block["address"], block["size"], block["requested_size"])
                          for block in blocks], [(address, 1024, 1000)])

    def allocate_here(self):
        return tcuda.caching_allocator_alloc(1000)

    def test_history_with_stacks(self):
        self.record(stacks="python", clear_history=True)
        address = self.allocate_here()
        tcuda.caching_allocator_delete(address)
        trace = tcuda.memory._snapshot()["device_traces"][0]
        entries = [entry for entry in trace if entry.get("addr") == address]
        self.assertEqual([entry["action"] for entry in entries if "segment" not in entry["action"]],
                         ["alloc", "free_requested", "free_completed"])
        alloc = next(entry for entry in entries if entry["action"] == "alloc")
        self.assertEqual(alloc["size"], 1000)
        names = [frame["name"] for frame in alloc["frames"]]
        self.assertEqual(names[:3], [
            "caching_allocator_alloc", "allocate_here", "test_history_with_stacks"])
        line = self.allocate_here.__func__.__code__.co_firstlineno + 1
        self.assertEqual((alloc["frames"][1]["filename"], alloc["frames"][1]["line"]),
                         (self.allocate_here.__func__.__code__.co_filename, line))

    def test_history_without_stacks(self):
        self.record(context=None, max_entries=2, clear_history=True, skip_actions=["snapshot"])
        for _ in range(3):
            tcuda.caching_allocator_delete(self.allocate_here())
        trace = tcuda.memory._snapshot()["device_traces"][0]
        self.assertEqual([entry["action"] for entry in trace], ["free_requested", "free_completed"])
        self.assertEqual({tuple(entry["frames"]) for entry in trace}, {()})

    def test_options_that_do_not_exist(self):
        for options in ({"enabled": "some"}, {"context": "some"}, {"stacks": "some"},
                        {"max_entries": 0}, {"skip_actions": ["jump"]}):
            self.assertRaises(ValueError, tcuda.memory._record_memory_history, **options)

    def test_dump(self):
        self.allocate(1000)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "snapshot.pickle")
            tcuda.memory._dump_snapshot(path)
            snapshot = pickle.loads(path.read_bytes())
        self.assertEqual(sum(s["requested_size"] for s in snapshot["segments"]), 1000)
        self.assertIn("allocator_settings", snapshot)


class Pools(MemoryTest):
    def test_routes_this_thread(self):
        pool, other = tcuda.MemPool(), tcuda.MemPool(use_on_oom=True, no_split=True)
        self.assertNotEqual(pool.id, other.id)
        self.assertEqual(pool.id[0], 0)
        with tcuda.use_mem_pool(pool, OTHER):
            inside = self.allocate(512, OTHER)
        outside = self.allocate(512, OTHER)
        blocks = [block["address"] for segment in pool.snapshot() for block in segment["blocks"]]
        self.assertIn(inside, blocks)
        self.assertNotIn(outside, blocks)
        self.assertEqual(
            tcuda.memory_snapshot(pool.id, include_traces=False), pool.snapshot())

    @two_devices
    def test_is_of_one_device(self):
        pool = tcuda.MemPool()
        with tcuda.use_mem_pool(pool, 1):
            elsewhere = self.allocate(512, 0)
        blocks = [block["address"] for segment in pool.snapshot() for block in segment["blocks"]]
        self.assertNotIn(elsewhere, blocks)

    def test_use_count(self):
        pool = tcuda.MemPool()
        self.assertEqual(pool.use_count(), 1)
        self.assertIsNone(pool.allocator)

    def test_ends_with_its_object(self):
        pool = tcuda.MemPool()
        handle = pool._handle
        del pool
        gc.collect()
        self.assertRaises(tcuda.CudaError, _core.mem_pool_id, handle)

    def test_ends_with_an_exception(self):
        pool = tcuda.MemPool()
        with self.assertRaises(KeyError), tcuda.use_mem_pool(pool):
            raise KeyError
        self.allocate(512)
        self.assertEqual(pool.snapshot(), [])

    def test_allocator_of_a_library(self):
        folder = pathlib.Path(tcuda.__file__).parent
        library = str(next(folder.glob("lib/libtcuda.so.*")))
        allocator = tcuda.CUDAPluggableAllocator(library, "tcuda_torch_malloc", "tcuda_torch_free")
        self.assertIs(tcuda.MemPool(allocator).allocator, allocator)
        with self.assertRaisesRegex(tcuda.CudaError, "no_such_symbol"):
            tcuda.CUDAPluggableAllocator(library, "no_such_symbol", "tcuda_torch_free")
        self.allocate(64)
        with self.assertRaises(tcuda.CudaError) as raised:  # memory was allocated
            tcuda.change_current_allocator(allocator)
        self.assertEqual(raised.exception.status, "INVALID_STATE")


class Functions(MemoryTest):
    """An allocator whose functions are of ctypes."""

    # They live as long as the process.
    calls = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    def alloc_fn(size, device, stream):
        pointer = ctypes.c_uint64()
        status = Functions.kind(_core.backend_function("cuMemAlloc"))(pointer, size)
        Functions.calls.append(("alloc", size, device, stream or 0))
        return pointer.value if status == 0 else None

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    def free_fn(pointer, size, device, stream):
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
        kind(_core.backend_function("cuMemFree"))(pointer)
        Functions.calls.append(("free", size, device, stream or 0))

    def test_pool(self):
        alloc, free = (ctypes.cast(function, ctypes.c_void_p).value
                       for function in (Functions.alloc_fn, Functions.free_fn))
        pool = tcuda.MemPool(tcuda.CUDAPluggableAllocator.from_pointers(alloc, free))
        with tcuda.use_mem_pool(pool):
            address = tcuda.caching_allocator_alloc(1000)
        self.fill(address, 5)
        self.assertEqual(self.value(address), 5)
        (call, size, device, stream), = Functions.calls
        self.assertEqual((call, device, stream), ("alloc", 0, 0))
        self.assertGreaterEqual(size, 1000)
        tcuda.caching_allocator_delete(address)
        del pool
        gc.collect()
        tcuda.empty_cache()
        self.assertEqual(Functions.calls[1:], [("free", size, 0, 0)])
        with self.raises_status("INVALID_ARGUMENT"):
            tcuda.CUDAPluggableAllocator.from_pointers(0, free)


if __name__ == "__main__":
    unittest.main()
