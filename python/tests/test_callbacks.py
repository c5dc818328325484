"""Functions of Python that the library calls, also at the end of the interpreter."""

import gc
import threading
import unittest
import weakref
from unittest import mock

import tcuda
from support import GIB, MIB, TOTAL, TestCase, run_program
from tcuda import _core


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

    def test_result_is_ignored(self):
        class Result:
            def __bool__(self):
                raise ValueError("neither true nor false")

        with mock.patch("sys.unraisablehook") as hook:
            stream = tcuda.Stream()
            stream.add_callback(Result)
            stream.synchronize()
        hook.assert_not_called()

    def test_graph_that_ends_in_it_ends_later(self):
        stream = tcuda.Stream()
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph, stream=stream):
            address = tcuda.caching_allocator_alloc(1 << 20)
        tcuda.caching_allocator_delete(address)
        reserved = tcuda.memory_reserved()
        graphs = [graph]
        del graph
        stream.add_callback(graphs.clear)
        stream.synchronize()
        self.assertEqual(graphs, [])
        tcuda.Event()  # which ends at once
        tcuda.empty_cache()
        self.assertLess(tcuda.memory_reserved(), reserved)

    def test_is_dropped_where_the_registration_fails(self):
        def callback():
            pass

        dropped = weakref.ref(callback)
        self.assertRaises(tcuda.CudaError, _core.stream_add_callback, 1, callback)
        del callback
        gc.collect()
        self.assertIsNone(dropped())

    def test_of_threads_of_the_driver(self):
        program = run_program("""
            import threading, tcuda
            threads = set()
            stream = tcuda.Stream()
            for _ in range(100):
                stream.add_callback(lambda: threads.add(threading.get_ident()))
            stream.synchronize()
            print(threading.get_ident() in threads, len(threads))
            """, TCUDA_SIM="schedule=threads")
        self.assertEqual((program.stdout, program.stderr), ("False 1\n", ""))


class LogLines(TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(_core.set_log_callback, _core.LOG_OFF, None)

    def test_lines(self):
        lines = []
        _core.set_log_callback(_core.LOG_DEBUG, lambda level, line: lines.append((level, line)))
        tcuda.set_sync_debug_mode("warn")
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


class OutOfMemory(TestCase):
    def test_frees_and_asks_for_another_try(self):
        most = TOTAL * 5 // 8 // (2 * MIB) * (2 * MIB)
        kept = [self.allocate(most)]
        calls = []

        def callback(*arguments):
            calls.append(arguments)
            if kept:
                self.free(kept.pop())
                return True
            return False

        observer = tcuda.memory.OutOfMemoryObserver(callback)
        self.addCleanup(observer.remove)
        address = self.allocate(most)
        device, size, limit, free = calls[0]
        self.assertEqual((device, limit), (0, TOTAL))
        self.assertEqual(size, most)
        self.assertLess(free, size)
        self.free(address)
        self.assertRaises(tcuda.OutOfMemoryError, self.allocate, TOTAL + GIB)
        self.assertEqual(len(calls), 2)
        observer.remove()
        observer.remove()
        self.assertRaises(tcuda.OutOfMemoryError, self.allocate, TOTAL + GIB)
        self.assertEqual(len(calls), 2)


class Rejections(TestCase):
    def test_calls(self):
        _core.allocator_config_set("throw_on_cudamalloc_oom:True")
        self.addCleanup(_core.allocator_config_set, "throw_on_cudamalloc_oom:False")
        calls = []
        observer = tcuda.memory.RejectionObserver(lambda *arguments: calls.append(arguments))
        self.addCleanup(observer.remove)
        held = self.allocate(4 * MIB)
        tcuda.set_per_process_memory_fraction(0.25)
        size = TOTAL // 2 // (2 * MIB) * (2 * MIB)
        self.assertRaises(tcuda.OutOfMemoryError, self.allocate, size)
        self.assertEqual(calls, [(0, size, 4 * MIB, TOTAL)])
        observer.remove()
        self.assertRaises(tcuda.OutOfMemoryError, self.allocate, size)
        self.assertEqual(len(calls), 1)
        self.free(held)


class MemoryEvents(TestCase):
    def test_calls(self):
        tcuda.empty_cache()
        events = []
        observer = tcuda.memory.MemoryEventObserver(events.append)
        self.addCleanup(observer.remove)
        stream, pool = tcuda.Stream(0), tcuda.MemPool()
        self.addCleanup(_core.memory_metadata_set, None)
        _core.memory_metadata_set("layer 1")
        with tcuda.use_mem_pool(pool):
            address = self.allocate(1000, 0, stream)
        self.free(address)
        observer.remove()
        tcuda.caching_allocator_delete(tcuda.caching_allocator_alloc(1000))
        of_blocks = [event for event in events if event["ptr"] == address and
                     event["action"] in (_core.ACTION_ALLOC, _core.ACTION_FREE_REQUESTED,
                                         _core.ACTION_FREE_COMPLETED)]
        self.assertEqual([event["action"] for event in of_blocks], [
            _core.ACTION_ALLOC, _core.ACTION_FREE_REQUESTED, _core.ACTION_FREE_COMPLETED])
        for event in of_blocks:
            self.assertEqual(
                (event["bytes"], event["device"], event["cu_stream"], event["metadata"],
                 (event["pool_id0"], event["pool_id1"])),
                (1000, 0, stream.cuda_stream, "layer 1", pool.id))
        kinds = {event["action"] for event in events}
        self.assertTrue(kinds & {_core.ACTION_SEGMENT_ALLOC, _core.ACTION_SEGMENT_MAP})

    def test_exception_is_reported(self):
        observer = tcuda.memory.MemoryEventObserver(lambda event: event["no such member"])
        self.addCleanup(observer.remove)
        with mock.patch("sys.unraisablehook") as hook:
            self.allocate(512)
        self.assertIs(hook.call_args[0][0].exc_type, KeyError)


class GarbageCollection(TestCase):
    """Arrays of cycles end later than in a callback, where they could not free their memory."""

    def frees_all(self, call):
        class Cycle:
            def __init__(self):
                self.itself, self.array = self, tcuda.empty(1000)

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        before = tcuda.memory_allocated()
        cycle = Cycle()
        del cycle
        gc.enable()
        call()
        gc.collect()
        self.assertEqual(tcuda.memory_allocated(), before)

    def many_containers(self, argument):
        self.called = [[] for _ in range(5000)]
        return False

    def test_memory_event(self):
        observer = tcuda.memory.MemoryEventObserver(self.many_containers)
        self.addCleanup(observer.remove)
        self.frees_all(lambda: self.free(self.allocate(512)))
        self.assertTrue(self.called)

    def test_filter(self):
        pool = tcuda.MemPool()
        _core.mem_pool_begin_streams(pool._handle, 0, self.many_containers)
        self.addCleanup(lambda: _core.mem_pool_end_streams(pool._handle, 0))
        self.frees_all(lambda: self.free(self.allocate(512)))
        self.assertTrue(self.called)


class RaisedException(TestCase):
    """An exception is raised when the end of an object frees memory, and callbacks run."""

    def raises_key_error(self):
        with self.assertRaises(KeyError):
            # The capsule ends with the expression.
            (tcuda.empty(1).__dlpack__(), {}["name"])  # noqa: B018

    def test_memory_event(self):
        events = []
        observer = tcuda.memory.MemoryEventObserver(events.append)
        self.addCleanup(observer.remove)
        self.raises_key_error()
        self.assertIn(_core.ACTION_FREE_REQUESTED, [event["action"] for event in events])

    def test_stacks(self):
        tcuda.memory._record_memory_history(stacks="python")
        self.addCleanup(tcuda.memory._record_memory_history, None)
        self.raises_key_error()


class PoolOfStreams(TestCase):
    def test_of_all_threads(self):
        pool, stream = tcuda.MemPool(), tcuda.Stream(0)
        asked, native = [], stream.cuda_stream

        def is_ours(cu_stream):
            asked.append(cu_stream)
            return cu_stream == native

        def work():
            inside.append(self.allocate(512, 0, stream))

        inside = []
        with tcuda.memory.use_mem_pool_for_streams(pool, is_ours):
            work()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            outside = self.allocate(512)
            with self.raises_status("INVALID_STATE"):
                _core.mem_pool_begin_streams(pool._handle, 0, is_ours)
        after = self.allocate(512, 0, stream)
        blocks = {block["address"] for segment in pool.snapshot() for block in segment["blocks"]}
        self.assertTrue(blocks.issuperset(inside))
        self.assertFalse(blocks & {outside, after})
        self.assertEqual(set(asked), {native, 0})


class Dropped(TestCase):
    def ends(self, begin, end):
        """Is a callback kept from `begin` to `end` and no longer?"""
        def callback(*arguments):
            pass

        kept = weakref.ref(callback)
        handle = begin(callback)
        del callback
        gc.collect()
        self.assertIsNotNone(kept())
        end(handle)
        gc.collect()
        self.assertIsNone(kept())

    def test_with_their_registration(self):
        pool = tcuda.MemPool()
        for register in (_core.memory_on_out_of_memory, _core.memory_on_rejection,
                         _core.memory_on_event,
                         lambda callback: _core.graph_on_event(None, 1, callback)):
            self.ends(register, _core.observer_destroy)
        self.ends(lambda callback: _core.mem_pool_begin_streams(pool._handle, 0, callback),
                  lambda _: _core.mem_pool_end_streams(pool._handle, 0))
        self.ends(lambda callback: _core.sanitizer_enable(0, callback, 0),
                  lambda _: _core.sanitizer_disable())

    def test_where_the_registration_fails(self):
        def callback(*arguments):
            pass

        kept = weakref.ref(callback)
        self.assertRaises(tcuda.CudaError, _core.mem_pool_begin_streams, 0, 0, callback)
        self.assertRaises(tcuda.CudaError, _core.graph_on_event, 1, 1, callback)
        self.assertRaises(TypeError, _core.sanitizer_enable, 0, 1, 0)
        del callback
        gc.collect()
        self.assertIsNone(kept())


class Retained(TestCase):
    def test_object_ends_with_the_captured_work(self):
        class Object:
            pass

        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph):
            tcuda.Event(external=True).record()
        for end in (graph.reset, lambda: _core.graph_destroy(graph._handle)):
            one = Object()
            ended = weakref.ref(one)
            _core.graph_retain(graph._handle, one, 1)
            del one
            gc.collect()
            self.assertIsNotNone(ended())
            end()
            self.assertIsNone(ended())
        one = Object()
        ended = weakref.ref(one)
        self.assertRaises(tcuda.CudaError, _core.graph_retain, 1, one, 0)
        del one
        self.assertIsNone(ended())


class OtherInterpreter(unittest.TestCase):
    def test_is_refused(self):
        program = run_program("""
            import sys, tcuda
            try:
                from _testcapi import run_in_subinterp
            except ImportError:
                sys.exit("no sub-interpreters")
            run_in_subinterp(f"import sys; sys.path[:] = {sys.path}\\n"
                             "try: import tcuda\\n"
                             "except ImportError as error: print(error, flush=True)")
            called = []
            stream = tcuda.Stream()
            stream.add_callback(lambda: called.append(1))
            stream.synchronize()
            print(len(called))
            """)
        if program.stderr == "no sub-interpreters\n":
            self.skipTest("this Python has no _testcapi")
        self.assertEqual((program.stdout, program.stderr),
                         ("tcuda works in the main interpreter alone\n1\n", ""))


class End(unittest.TestCase):
    """The end of the interpreter, with objects and callbacks that are alive."""

    def ends_well(self, program, **environment):
        for _ in range(3):
            ended = run_program(program, **environment)
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
