"""The allocator: addresses, reuse, streams, limits, lack of memory."""

import threading
import unittest

from adapters import Memory, busy, cuda
from base import MIB, Case, each, two_devices


class Addresses(Case):
    def test_alignment(self):
        for size in (1, 700, MIB, 3 * MIB + 1):
            self.assertEqual(self.alloc(size) % 512, 0)

    def test_neighbours(self):
        first = self.alloc(1000)
        self.assertEqual(self.alloc(500), first + 1024)
        self.assertEqual(self.alloc(1), first + 1536)

    def test_reuse(self):
        address = self.alloc(1000)
        self.free(address)
        self.assertEqual(self.alloc(1024), address)

    def test_lowest_address(self):
        addresses = [self.alloc(512) for _ in range(4)]
        self.free(addresses[2])
        self.free(addresses[0])
        self.assertEqual(self.alloc(512), addresses[0])

    def test_best_fit(self):
        first, _, second, _ = (self.alloc(size) for size in (4096, 512, 1024, 512))
        self.free(first)
        self.free(second)
        self.assertEqual(self.alloc(1024), second)
        self.assertEqual(self.alloc(1024), first)

    def test_neighbours_are_merged(self):
        addresses = [self.alloc(512) for _ in range(4)]
        for index in (1, 0, 2):
            self.free(addresses[index])
        self.assertEqual(self.alloc(1536), addresses[0])

    def test_pools_are_apart(self):
        """Free memory of large blocks does not serve small ones."""
        large = self.alloc(20 * MIB)
        self.free(large)
        small = self.alloc(MIB)
        self.assertFalse(large <= small < large + 20 * MIB)
        self.assertEqual(cuda.memory_reserved(), 22 * MIB)

    def test_large_block_is_split(self):
        address = self.alloc(3 * MIB)
        self.assertEqual(self.alloc(3 * MIB), address + 3 * MIB)
        self.assertEqual(cuda.memory_reserved(), 20 * MIB)

    def test_little_remainder_is_kept(self):
        """1 MiB or less is not split from a large block."""
        self.free(self.alloc(12 * MIB))
        self.alloc(11 * MIB)
        self.assertEqual(cuda.memory_allocated(), 12 * MIB)

    def test_more_than_1_MiB_is_split(self):
        self.free(self.alloc(12 * MIB))
        self.alloc(11 * MIB - 512)
        self.assertEqual(cuda.memory_allocated(), 11 * MIB - 512)

    def test_remainder_of_a_small_block(self):
        addresses = [self.alloc(size) for size in (1024, 512)]
        self.free(addresses[0])
        self.assertEqual(self.alloc(512), addresses[0])
        self.assertEqual(self.alloc(512), addresses[0] + 512)


class Streams(Case):
    def test_other_stream_has_a_segment_of_its_own(self):
        self.free(self.alloc(1000))
        address = self.alloc(1000, cuda.Stream())
        self.assert_stats(segment__all__current=2)
        self.free(address)

    def test_same_stream_reuses(self):
        stream = cuda.Stream()
        address = self.alloc(1000, stream)
        busy(stream)
        self.free(address)
        self.assertEqual(self.alloc(1000, stream), address)
        stream.synchronize()

    def test_default_is_the_current_stream(self):
        stream = cuda.Stream()
        with cuda.stream(stream):
            address = self.alloc(1000)
        self.free(address)
        self.assertNotEqual(self.alloc(1000), address)
        self.assertEqual(self.alloc(1000, stream), address)

    def test_stream_as_a_number(self):
        stream = cuda.Stream()
        address = self.alloc(1000, stream)
        self.free(address)
        self.assertEqual(self.alloc(1000, stream.cuda_stream), address)

    def test_other_use_delays_the_reuse(self):
        stream, memory = cuda.Stream(), Memory(1000)
        address = memory.address
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        other = self.alloc(1000)
        self.assertNotEqual(other, address)
        stream.synchronize()
        self.free(other)
        self.assertEqual(self.alloc(1000), address)

    def test_other_use_that_has_ended(self):
        stream, memory = cuda.Stream(), Memory(1000)
        address = memory.address
        memory.record_stream(stream)
        memory.free()
        stream.synchronize()
        self.assertEqual(self.alloc(1000), address)

    def test_use_of_its_own_stream(self):
        memory = Memory(1000)
        address = memory.address
        memory.record_stream(cuda.current_stream())
        memory.free()
        self.assert_stats(active__all__current=0)
        self.assertEqual(self.alloc(1000), address)

    def test_empty_cache_waits_for_other_uses(self):
        stream, memory = cuda.Stream(), Memory(1000)
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        cuda.empty_cache()
        self.assertIs(stream.query(), True)
        self.assert_stats(active__all__current=0, reserved_bytes__all__current=0)


class Devices(Case):
    @two_devices
    def test_of_a_number(self):
        address = self.alloc(1000, device=1)
        self.assertEqual((cuda.memory_allocated(0), cuda.memory_allocated(1)), (0, 1024))
        self.free(address)
        self.assertEqual(cuda.memory_allocated("cuda:1"), 0)

    @two_devices
    def test_default_is_the_current_one(self):
        with cuda.device(1):
            address = self.alloc(1000, device=None)
            self.assertEqual(cuda.memory_allocated(), 1024)
        self.assertEqual(cuda.memory_allocated(), 0)
        self.free(address)

    @two_devices
    def test_peaks_are_apart(self):
        cuda.reset_peak_memory_stats(1)
        before = cuda.max_memory_allocated(1)
        self.free(self.alloc(4 * MIB))
        self.assertEqual(cuda.max_memory_allocated(1), before)


class Threads(Case):
    def test_memory_is_freed_by_another(self):
        address = self.alloc(1000)
        thread = threading.Thread(target=self.free, args=(address,))
        thread.start()
        thread.join()
        self.assertEqual(cuda.memory_allocated(), 0)
        self.assertEqual(self.alloc(1000), address)

    def test_many(self):
        def work():
            for size in range(1, 4000, 37):
                cuda.caching_allocator_delete(cuda.caching_allocator_alloc(size, 0))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count = 4 * len(range(1, 4000, 37))
        self.assert_stats(allocation__all__allocated=count, allocation__all__freed=count,
                          allocated_bytes__all__current=0)


class Driver(Case):
    def test_info(self):
        free, total = cuda.mem_get_info()
        self.assertEqual((type(free), type(total)), (int, int))
        self.assertLessEqual(free, total)
        self.assertGreater(free, 0)
        self.assertEqual(cuda.mem_get_info(0)[1], total)
        self.assertEqual(cuda.mem_get_info("cuda:0")[1], total)

    def test_info_is_a_tuple(self):
        self.assertIs(type(cuda.mem_get_info()), tuple)

    def test_cached_memory_is_not_free(self):
        before, _ = cuda.mem_get_info()
        self.free(self.alloc(256 * MIB))
        self.assertLessEqual(cuda.mem_get_info()[0], before - 256 * MIB)
        cuda.empty_cache()
        self.assertGreater(cuda.mem_get_info()[0], before - 256 * MIB)

    def test_empty_cache_keeps_split_segments(self):
        self.alloc(1000)
        self.free(self.alloc(64 * MIB))
        cuda.empty_cache()
        self.assertEqual(cuda.memory_reserved(), 2 * MIB)

    def test_backend(self):
        self.assertEqual(cuda.get_allocator_backend(), "native")

    def test_processes(self):
        self.assertIs(type(cuda.list_gpu_processes()), str)


class Limit(Case):
    def limit(self, size):
        """Limits the allocator to so many bytes, or a few less."""
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction((size + 4096) / total)

    def test_default(self):
        self.assertEqual(cuda.get_per_process_memory_fraction(), 1.0)
        self.assertIs(type(cuda.get_per_process_memory_fraction()), float)

    @each(half=0.5, all_=1.0, none=0.0)
    def test_set(self, fraction):
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        self.assertIsNone(cuda.set_per_process_memory_fraction(fraction))
        self.assertAlmostEqual(cuda.get_per_process_memory_fraction(0), fraction)

    def test_most(self):
        self.limit(64 * MIB)
        self.free(self.alloc(64 * MIB))
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 66 * MIB)

    def test_counts_reserved_bytes(self):
        self.limit(64 * MIB)
        self.alloc(1000)  # 2 MiB
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 64 * MIB)
        self.alloc(62 * MIB)

    def test_nothing(self):
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        cuda.set_per_process_memory_fraction(0.0)
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 1)

    def test_end(self):
        self.limit(2 * MIB)
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 64 * MIB)
        cuda.set_per_process_memory_fraction(1.0)
        self.alloc(64 * MIB)

    def test_cached_memory_is_freed_for_another_try(self):
        self.limit(64 * MIB)
        self.free(self.alloc(40 * MIB))
        self.alloc(60 * MIB)
        self.assert_stats(
            num_alloc_retries=1, num_ooms=0, num_sync_all_streams=1, num_device_free=1,
            num_device_alloc=2, reserved_bytes__all__current=60 * MIB)

    def test_retry_waits_for_other_uses(self):
        self.limit(64 * MIB)
        stream, memory = cuda.Stream(), Memory(40 * MIB)
        busy(stream)
        memory.record_stream(stream)
        memory.free()
        self.alloc(60 * MIB)
        self.assertIs(stream.query(), True)
        self.assert_stats(num_alloc_retries=1, num_ooms=0)


class OutOfMemory(Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction((64 * MIB + 4096) / total)

    def error(self, size):
        with self.assertRaises(cuda.OutOfMemoryError) as raised:
            self.alloc(size)
        return str(raised.exception)

    def test_type(self):
        self.assertTrue(issubclass(cuda.OutOfMemoryError, RuntimeError))
        self.assertRaises(RuntimeError, self.alloc, 100 * MIB)

    def test_counts(self):
        self.error(100 * MIB)
        self.assert_stats(
            num_ooms=1, num_alloc_retries=1, num_sync_all_streams=1, num_device_alloc=0,
            allocation__all__allocated=0, allocated_bytes__all__peak=0)

    def test_again(self):
        self.error(100 * MIB)
        self.error(100 * MIB)
        self.assert_stats(num_ooms=2, num_alloc_retries=2)

    def test_works_afterwards(self):
        self.error(100 * MIB)
        self.alloc(1000)
        self.assertEqual(cuda.memory_allocated(), 1024)

    def test_cache_is_empty_afterwards(self):
        self.free(self.alloc(1000))
        self.error(100 * MIB)
        self.assertEqual(cuda.memory_reserved(), 0)

    @each(
        rounded=(100 * MIB, r"Tried to allocate 100\.00 MiB\. "),
        of_the_segment=(99 * MIB, r"Tried to allocate 100\.00 MiB\. "),
        gibibytes=(3 << 30, r"Tried to allocate 3\.00 GiB\. "),
    )
    def test_size(self, size, text):
        self.assertRegex(self.error(size), "^CUDA out of memory. " + text)

    def test_size_of_a_segment_for_a_small_block(self):
        self.alloc(63 * MIB)  # 64 MiB
        self.assertRegex(self.error(1000), r"Tried to allocate 2\.00 MiB\. ")

    @each(
        device=r"GPU 0 has a total capacity of [\d.]+ GiB of which [\d.]+ GiB is free\. ",
        limit=r"\. 64\.00 MiB allowed; ",
        allocated=r"Of the allocated memory 10\.00 MiB is allocated by \w+, ",
        reserved=r" and 10\.00 MiB is reserved by \w+ but unallocated\. ",
        advice=r"If reserved but unallocated memory is large try .*expandable_segments:True",
    )
    def test_text(self, text):
        self.alloc(10 * MIB)
        self.alloc(MIB)
        self.free(self.alloc(3 * MIB))
        for address in list(self.live):
            self.free(address)
        cuda.empty_cache()
        self.alloc(5 * MIB)
        self.alloc(5 * MIB)
        self.assertRegex(self.error(100 * MIB), text)

    def test_text_without_limit(self):
        cuda.set_per_process_memory_fraction(1.0)
        text = self.error(1 << 45)
        self.assertRegex(text, r"Tried to allocate 32768\.00 GiB\. ")
        self.assertNotIn("allowed", text)

    def test_exabyte(self):
        with self.assertRaisesRegex(
                cuda.OutOfMemoryError, "Tried to allocate more than 1EB memory"):
            Memory(1 << 60)


class Errors(Case):
    @each(stream="0", number=1.5)
    def test_stream_type(self, stream):
        self.assertRaises(TypeError, cuda.caching_allocator_alloc, 512, 0, stream)

    def test_free_twice(self):
        address = self.alloc(1000)
        self.free(address)
        self.assertRaisesRegex(
            RuntimeError, "invalid device pointer", cuda.caching_allocator_delete, address)

    def test_free_within_a_block(self):
        address = self.alloc(1000)
        self.assertRaises(RuntimeError, cuda.caching_allocator_delete, address + 512)

    def test_free_of_nothing(self):
        self.assertIsNone(cuda.caching_allocator_delete(0))

    @each(integer=1, none=None, text="0.5")
    def test_fraction_type(self, fraction):
        self.assertRaises(TypeError, cuda.set_per_process_memory_fraction, fraction)

    @each(negative=-0.1, large=1.5, infinite=float("inf"))
    def test_fraction_value(self, fraction):
        with self.assertRaises(ValueError):
            cuda.set_per_process_memory_fraction(fraction)
        self.assertEqual(cuda.get_per_process_memory_fraction(), 1.0)


if __name__ == "__main__":
    unittest.main()
