"""Private pools: MemPool and use_mem_pool."""

import gc
import threading
import unittest

from adapters import cuda
from base import MIB, Case, two_devices


class PoolCase(Case):
    def addresses(self, segments):
        return [block["address"] for segment in segments for block in segment["blocks"]]


class Objects(PoolCase):
    def test_id(self):
        pool, other = cuda.MemPool(), cuda.MemPool()
        self.assertEqual((type(pool.id), len(pool.id)), (tuple, 2))
        self.assertEqual(pool.id[0], 0)
        self.assertGreater(pool.id[1], 0)
        self.assertNotEqual(pool.id, other.id)

    def test_use_count(self):
        pool = cuda.MemPool()
        self.assertEqual(pool.use_count(), 1)
        with cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
        self.assertEqual(pool.use_count(), 1)

    def test_snapshot_of_nothing(self):
        self.assertEqual(cuda.MemPool().snapshot(), [])

    def test_keywords(self):
        pool = cuda.MemPool(allocator=None, use_on_oom=True, no_split=False)
        self.assertEqual(pool.use_count(), 1)


class Routes(PoolCase):
    def setUp(self):
        super().setUp()
        self.pool = cuda.MemPool()

    def tearDown(self):
        for address in list(self.live):
            self.free(address)
        del self.pool
        gc.collect()

    def test_inside(self):
        with cuda.use_mem_pool(self.pool):
            address = self.alloc(1000)
        segment, = self.pool.snapshot()
        self.assertEqual(segment["segment_pool_id"], self.pool.id)
        self.assertEqual(segment["address"], address)
        self.assertEqual(segment["requested_size"], 1000)

    def test_outside(self):
        with cuda.use_mem_pool(self.pool):
            pass
        self.alloc(1000)
        self.assertEqual(self.pool.snapshot(), [])

    def test_gives_nothing(self):
        with cuda.use_mem_pool(self.pool) as entered:
            self.assertIsNone(entered)

    def test_device(self):
        with cuda.use_mem_pool(self.pool, 0):
            address = self.alloc(1000)
        self.assertIn(address, self.addresses(self.pool.snapshot()))

    def test_exception(self):
        with self.assertRaises(KeyError), cuda.use_mem_pool(self.pool):
            raise KeyError
        self.assertEqual(self.pool.use_count(), 1)
        self.alloc(1000)
        self.assertEqual(self.pool.snapshot(), [])

    def test_statistics_have_it(self):
        with cuda.use_mem_pool(self.pool):
            self.alloc(1000)
        self.alloc(1000)
        self.assert_stats(
            allocation__small_pool__current=2, allocated_bytes__all__current=2048,
            segment__all__current=2, reserved_bytes__all__current=4 * MIB)

    def test_its_memory_is_not_for_others(self):
        with cuda.use_mem_pool(self.pool):
            address = self.alloc(1000)
            self.free(address)
        self.assertNotEqual(self.alloc(1000), address)
        with cuda.use_mem_pool(self.pool):
            self.assertEqual(self.alloc(1000), address)

    def test_others_memory_is_not_for_it(self):
        address = self.alloc(1000)
        self.free(address)
        with cuda.use_mem_pool(self.pool):
            self.assertNotEqual(self.alloc(1000), address)

    def test_free_outside(self):
        with cuda.use_mem_pool(self.pool):
            address = self.alloc(1000)
        self.free(address)
        self.assertEqual(cuda.memory_allocated(), 0)
        self.assertEqual(self.pool.snapshot()[0]["allocated_size"], 0)

    def test_whole_snapshot_has_it(self):
        with cuda.use_mem_pool(self.pool):
            self.alloc(1000)
        self.alloc(1000)
        self.assertEqual(
            {segment["segment_pool_id"] for segment in cuda.memory_snapshot()},
            {(0, 0), self.pool.id})
        of_pool = cuda.memory_snapshot(self.pool.id)
        self.assertEqual(self.addresses(of_pool), self.addresses(self.pool.snapshot()))

    def test_nested(self):
        inner = cuda.MemPool()
        with cuda.use_mem_pool(self.pool):
            first = self.alloc(1000)
            with cuda.use_mem_pool(inner):
                second = self.alloc(1000)
            third = self.alloc(1000)
        mine = self.addresses(self.pool.snapshot())
        self.assertIn(first, mine)
        self.assertIn(third, mine)
        self.assertNotIn(second, mine)
        self.assertIn(second, self.addresses(inner.snapshot()))
        self.free(second)

    def test_nested_in_itself(self):
        with cuda.use_mem_pool(self.pool):
            with self.assertRaisesRegex(RuntimeError, "already recording to mempool_id"):
                with cuda.use_mem_pool(self.pool):
                    pass

    def test_other_thread(self):
        made = []
        with cuda.use_mem_pool(self.pool):
            thread = threading.Thread(target=lambda: made.append(self.alloc(1000)))
            thread.start()
            thread.join()
        self.assertEqual(self.pool.snapshot(), [])
        self.free(made[0])

    def test_streams(self):
        stream = cuda.Stream()
        with cuda.use_mem_pool(self.pool), cuda.stream(stream):
            self.alloc(1000)
        self.assertEqual(self.pool.snapshot()[0]["stream"], stream.cuda_stream)

    def test_large(self):
        with cuda.use_mem_pool(self.pool):
            self.alloc(5 * MIB)
            self.alloc(1000)
        self.assertEqual(
            sorted(segment["segment_type"] for segment in self.pool.snapshot()),
            ["large", "small"])

    @two_devices
    def test_other_device(self):
        with cuda.device(1):
            pool = cuda.MemPool()
            with cuda.use_mem_pool(pool, 1):
                inside, elsewhere = self.alloc(1000, device=1), self.alloc(1000, device=0)
            mine = self.addresses(pool.snapshot())
        self.assertIn(inside, mine)
        self.assertNotIn(elsewhere, mine)
        self.free(inside)
        self.free(elsewhere)


class End(PoolCase):
    def test_memory_returns(self):
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            self.free(self.alloc(64 * MIB))
        self.assertEqual(cuda.memory_reserved(), 64 * MIB)
        del pool
        gc.collect()
        self.assertEqual(cuda.memory_reserved(), 0)

    def test_empty_cache_leaves_a_live_pool(self):
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            self.free(self.alloc(64 * MIB))
        cuda.empty_cache()
        self.assertEqual(cuda.memory_reserved(), 64 * MIB)
        del pool

    def test_live_memory_outlives_it(self):
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            address = self.alloc(1000)
        del pool
        gc.collect()
        self.assertEqual(cuda.memory_allocated(), 1024)
        self.free(address)
        cuda.empty_cache()
        self.assertEqual(cuda.memory_reserved(), 0)


class Options(PoolCase):
    def test_no_split(self):
        pool = cuda.MemPool(no_split=True)
        with cuda.use_mem_pool(pool):
            first, second = self.alloc(1000), self.alloc(1000)
        self.assertEqual(cuda.memory_allocated(), 4 * MIB)
        self.assertEqual(len(pool.snapshot()), 2)
        self.free(first)
        self.free(second)

    def limit(self, size):
        self.addCleanup(cuda.set_per_process_memory_fraction, 1.0)
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction((size + 4096) / total)

    def test_use_on_out_of_memory(self):
        pool = cuda.MemPool(use_on_oom=True)
        self.limit(64 * MIB)
        with cuda.use_mem_pool(pool):
            address = self.alloc(60 * MIB)
            self.free(address)
        self.assertEqual(self.alloc(60 * MIB), address)
        self.assert_stats(num_ooms=0, num_alloc_retries=0, num_device_alloc=1)
        self.free(address)

    def test_is_not_used_by_default(self):
        pool = cuda.MemPool()
        self.limit(64 * MIB)
        with cuda.use_mem_pool(pool):
            self.free(self.alloc(60 * MIB))
        self.assertRaises(cuda.OutOfMemoryError, self.alloc, 60 * MIB)
        del pool

    def test_text_of_out_of_memory(self):
        pool = cuda.MemPool()
        self.limit(64 * MIB)
        with cuda.use_mem_pool(pool):
            self.free(self.alloc(60 * MIB))
        with self.assertRaisesRegex(
                cuda.OutOfMemoryError, r"with 60\.00 MiB allocated in private pools"):
            self.alloc(60 * MIB)
        del pool


class Errors(PoolCase):
    def test_type(self):
        with self.assertRaises((TypeError, AttributeError)):
            with cuda.use_mem_pool("pool"):
                pass


if __name__ == "__main__":
    unittest.main()
