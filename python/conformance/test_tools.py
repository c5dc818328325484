"""NVTX, the profiler, the sync debug mode, telemetry, and what is called between processes."""

import threading
import unittest
import warnings

from adapters import busy, cuda
from base import Case, each


class Ranges(Case):
    def test_depths(self):
        """Zero-based depths of ranges that begin and end."""
        nvtx = cuda.nvtx
        self.assertEqual([nvtx.range_push("a"), nvtx.range_push("b")], [0, 1])
        self.assertEqual([nvtx.range_pop(), nvtx.range_pop()], [1, 0])

    def test_types(self):
        self.assertIs(type(cuda.nvtx.range_push("a")), int)
        self.assertIs(type(cuda.nvtx.range_pop()), int)

    def test_end_of_none(self):
        self.assertLess(cuda.nvtx.range_pop(), 0)

    def test_mark(self):
        self.assertIsNone(cuda.nvtx.mark("here"))

    def test_ids(self):
        first, second = cuda.nvtx.range_start("a"), cuda.nvtx.range_start("b")
        self.assertIs(type(first), int)
        self.assertIsNone(cuda.nvtx.range_end(second))
        thread = threading.Thread(target=cuda.nvtx.range_end, args=(first,))
        thread.start()
        thread.join()

    def test_context(self):
        with cuda.nvtx.range("step {} of {total}", 1, total=2) as entered:
            self.assertIsNone(entered)

    def test_exception(self):
        with self.assertRaises(KeyError), cuda.nvtx.range("step"):
            raise KeyError

    def test_format(self):
        with self.assertRaises(IndexError):
            with cuda.nvtx.range("step {}"):
                pass

    def test_decorator(self):
        @cuda.nvtx.range("work")
        def work(number):
            return number + 1

        self.assertEqual([work(1), work(2)], [2, 3])

    @each(push=cuda.nvtx.range_push, mark=cuda.nvtx.mark, start=cuda.nvtx.range_start)
    def test_type(self, call):
        self.assertRaises(TypeError, call, 1)


class Profiler(Case):
    def test_start_and_stop(self):
        cuda.profiler.start()
        cuda.profiler.stop()

    def test_context(self):
        with cuda.profiler.profile():
            pass
        with self.assertRaises(KeyError), cuda.profiler.profile():
            raise KeyError


class SyncDebugMode(Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.set, 0)

    def set(self, mode):
        """Sets the mode; PyTorch warns at the first call that it is a prototype."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cuda.set_sync_debug_mode(mode)

    def test_default(self):
        self.assertEqual(cuda.get_sync_debug_mode(), 0)

    @each(default=("default", 0), warn=("warn", 1), error=("error", 2), zero=(0, 0), one=(1, 1),
          two=(2, 2))
    def test_set(self, mode, expected):
        self.assertIsNone(self.set(mode))
        self.assertEqual(cuda.get_sync_debug_mode(), expected)

    def test_error(self):
        self.set("error")
        self.assertRaises(RuntimeError, cuda.Stream().synchronize)

    def test_error_comes_first(self):
        stream = cuda.Stream()
        busy(stream)
        self.set("error")
        self.assertRaises(RuntimeError, stream.synchronize)
        self.assertIs(stream.query(), False)
        self.set(0)
        stream.synchronize()

    def test_warning(self):
        self.set("warn")
        with self.assertWarnsRegex(UserWarning, "called a synchronizing CUDA operation"):
            cuda.Stream().synchronize()

    def test_nothing(self):
        self.set("default")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cuda.Stream().synchronize()

    def test_waits_that_are_allowed(self):
        """The device's and an event's."""
        event = cuda.Event()
        event.record()
        self.set("error")
        cuda.synchronize()
        event.synchronize()

    def test_of_all_threads(self):
        self.set("error")
        seen = []
        thread = threading.Thread(target=lambda: seen.append(cuda.get_sync_debug_mode()))
        thread.start()
        thread.join()
        self.assertEqual(seen, [2])

    def test_word(self):
        with self.assertRaisesRegex(
                RuntimeError, "invalid value of debug_mode, expected one of `default`, `warn`, "
                "`error`"):
            self.set("loud")

    @each(three=3, negative=-1)
    def test_number(self, mode):
        self.assertRaises(RuntimeError, self.set, mode)
        self.assertEqual(cuda.get_sync_debug_mode(), 0)


class Telemetry(Case):
    @each(
        utilization=(cuda.utilization, 0, 100), memory_usage=(cuda.memory_usage, 0, 100),
        temperature=(cuda.temperature, 1, 120), power_draw=(cuda.power_draw, 1000, 2_000_000),
        clock_rate=(cuda.clock_rate, 1, 5000),
        device_memory_used=(cuda.device_memory_used, 0, 1 << 40),
    )
    def test_range(self, call, least, most):
        value = call()
        self.assertIs(type(value), int)
        self.assertGreaterEqual(value, least)
        self.assertLessEqual(value, most)
        self.assertIs(type(call(0)), int)

    def test_memory_is_counted(self):
        before = cuda.device_memory_used()
        self.alloc(512 << 20)
        self.assertGreaterEqual(cuda.device_memory_used() - before, 500 << 20)

    def test_processes(self):
        lines = cuda.list_gpu_processes(0).splitlines()
        self.assertEqual(lines[0], "GPU:0")
        for line in lines[1:]:
            self.assertRegex(
                line, r"^(process +\d+ uses +\d+\.\d{3} MB GPU memory|no processes are running)$")


class Processes(Case):
    def test_collect(self):
        self.assertIsNone(cuda.ipc_collect())

    def test_collect_again(self):
        for _ in range(3):
            cuda.ipc_collect()


if __name__ == "__main__":
    unittest.main()
