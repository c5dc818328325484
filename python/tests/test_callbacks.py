"""Functions of Python that the library calls, also at the end of the interpreter."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import unittest
import weakref
from unittest import mock

import tcuda
from tcuda import _core


def run(program, **environment):
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
        timeout=60, env={**os.environ, **environment})


class Streams(unittest.TestCase):
    def test_runs_and_is_dropped(self):
        called = []

        def callback():
            called.append(threading.get_ident())

        dropped = weakref.ref(callback)
        stream = tcuda.Stream()
        stream.add_callback(callback)
        del callback
        stream.synchronize()
        self.assertEqual(len(called), 1)
        gc.collect()
        self.assertIsNone(dropped())

    def test_exception_is_reported(self):
        with mock.patch("sys.unraisablehook") as hook:
            stream = tcuda.Stream()
            stream.add_callback(lambda: 1 // 0)
            stream.synchronize()
        self.assertIs(hook.call_args[0][0].exc_type, ZeroDivisionError)

    def test_is_dropped_where_the_registration_fails(self):
        def callback():
            pass

        dropped = weakref.ref(callback)
        self.assertRaises(tcuda.CudaError, _core.stream_add_callback, 1, callback)
        del callback
        gc.collect()
        self.assertIsNone(dropped())

    def test_of_threads_of_the_driver(self):
        program = run("""
            import threading, tcuda
            threads = set()
            stream = tcuda.Stream()
            for _ in range(100):
                stream.add_callback(lambda: threads.add(threading.get_ident()))
            stream.synchronize()
            print(threading.get_ident() in threads, len(threads))
            """, TCUDA_SIM="schedule=threads")
        self.assertEqual((program.stdout, program.stderr), ("False 1\n", ""))


class LogLines(unittest.TestCase):
    def tearDown(self):
        _core.set_log_callback(_core.LOG_OFF, None)

    def test_lines(self):
        lines = []
        _core.set_log_callback(_core.LOG_DEBUG, lambda level, line: lines.append((level, line)))
        tcuda.set_sync_debug_mode("warn")
        self.addCleanup(tcuda.set_sync_debug_mode, "default")
        tcuda.current_stream().synchronize()
        levels, texts = zip(*lines)
        self.assertIn(_core.LOG_WARNING, levels)
        self.assertTrue(any("synchron" in text for text in texts))

    def test_is_dropped_when_it_is_replaced(self):
        def callback(level, line):
            pass

        dropped = weakref.ref(callback)
        _core.set_log_callback(_core.LOG_DEBUG, callback)
        del callback
        gc.collect()
        self.assertIsNotNone(dropped())
        _core.set_log_callback(_core.LOG_OFF, None)
        gc.collect()
        self.assertIsNone(dropped())


class OutOfMemory(unittest.TestCase):
    def test_frees_and_asks_for_another_try(self):
        kept = [tcuda.caching_allocator_alloc(10 << 30)]
        calls = []

        def callback(*arguments):
            calls.append(arguments)
            if kept:
                tcuda.caching_allocator_delete(kept.pop())
                return True
            return False

        observer = tcuda.memory.OutOfMemoryObserver(callback)
        address = tcuda.caching_allocator_alloc(10 << 30)
        device, size, limit, free = calls[0]
        self.assertEqual((device, limit), (0, 16 << 30))
        self.assertEqual(size, 10 << 30)
        self.assertLess(free, size)
        tcuda.caching_allocator_delete(address)
        self.assertRaises(tcuda.OutOfMemoryError, tcuda.caching_allocator_alloc, 17 << 30)
        self.assertEqual(len(calls), 2)
        observer.remove()
        observer.remove()
        self.assertRaises(tcuda.OutOfMemoryError, tcuda.caching_allocator_alloc, 17 << 30)
        self.assertEqual(len(calls), 2)
        tcuda.empty_cache()


class End(unittest.TestCase):
    """The end of the interpreter, with objects and callbacks that are alive."""

    def ends_well(self, program, **environment):
        for _ in range(3):
            ended = run(program, **environment)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_live_objects(self):
        self.ends_well("""
            import tcuda
            stream, event, pool = tcuda.Stream(), tcuda.Event(), tcuda.MemPool()
            event.record(stream)
            tcuda.set_stream(tcuda.ExternalStream(stream.cuda_stream))
            tcuda.caching_allocator_alloc(512)
            """)

    def test_live_callbacks(self):
        self.ends_well("""
            import tcuda
            from tcuda import _core
            _core.set_log_callback(_core.LOG_DEBUG, lambda level, line: None)
            observer = tcuda.memory.OutOfMemoryObserver(lambda *arguments: False)
            tcuda.memory._record_memory_history(stacks="python")
            address = tcuda.caching_allocator_alloc(512)
            """)

    def test_callbacks_after_the_end(self):
        self.ends_well("""
            import tcuda
            from tcuda import _core
            _core.close_callbacks()
            called = []
            stream = tcuda.Stream()
            stream.add_callback(lambda: called.append(1))
            stream.synchronize()
            assert called == []
            """)

    def test_callbacks_that_still_run(self):
        self.ends_well("""
            import time, tcuda
            for _ in range(8):
                stream = tcuda.Stream()
                for _ in range(50):
                    stream.add_callback(lambda: time.sleep(0.0005))
            """, TCUDA_SIM="schedule=threads")

    def test_forked_child(self):
        self.ends_well("""
            import os, threading, tcuda
            inside, leave = threading.Event(), threading.Event()
            stream = tcuda.Stream()
            stream.add_callback(lambda: (inside.set(), leave.wait()))
            inside.wait()
            child = os.fork()
            if child == 0:
                assert not tcuda.is_available()
                try:
                    tcuda.Stream()
                except tcuda.CudaError as error:
                    assert error.status == "FORKED"
            else:
                leave.set()
                assert os.waitpid(child, 0)[1] == 0
            """, TCUDA_SIM="schedule=threads", PYTHONWARNINGS="ignore::DeprecationWarning")


if __name__ == "__main__":
    unittest.main()
