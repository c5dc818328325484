"""Streams and events."""

import ctypes
import gc
import threading
import unittest
import weakref

import tcuda
from support import COUNT, OTHER, TestCase, two_devices
from tcuda import _core


class Streams(TestCase):
    def test_properties(self):
        stream = tcuda.Stream(f"cuda:{OTHER}", priority=-1)
        self.assertEqual(stream.device, tcuda.device(OTHER))
        self.assertEqual(stream.device_index, OTHER)
        self.assertEqual(stream.priority, -1)
        self.assertEqual(stream.__cuda_stream__(), (0, stream.cuda_stream))
        self.assertEqual(
            repr(stream), f"<tcuda.Stream device=cuda:{OTHER} cuda_stream={stream.cuda_stream:#x}>")
        self.assertEqual(tcuda.Stream.priority_range(), (0, -3))

    def test_default_stream(self):
        stream = tcuda.default_stream()
        self.assertEqual((stream.stream_id, stream.cuda_stream, stream.priority), (0, 0, 0))
        if COUNT > 1:
            self.assertNotEqual(stream, tcuda.default_stream(1))

    def test_33rd_stream_is_the_first(self):
        streams = [tcuda.Stream(OTHER) for _ in range(33)]
        self.assertEqual(streams[0], streams[32])
        self.assertEqual(hash(streams[0]), hash(streams[32]))
        self.assertEqual(len(set(streams)), 32)
        self.assertNotEqual(streams[0], streams[1])
        self.assertNotEqual(streams[0], 1)

    @two_devices
    def test_context(self):
        first, second = tcuda.Stream(0), tcuda.Stream(1)
        with tcuda.stream(first):
            self.assertEqual(tcuda.current_stream(), first)
            with tcuda.stream(second), tcuda.stream(None):
                self.assertEqual(tcuda.current_device(), 1)
                self.assertEqual(tcuda.current_stream(), second)
                self.assertEqual(tcuda.current_stream(0), first)
            self.assertEqual(tcuda.current_device(), 0)
            self.assertEqual(tcuda.current_stream(1), tcuda.default_stream(1))
        self.assertEqual(tcuda.current_stream(), tcuda.default_stream())

    def test_stream_is_a_context(self):
        first, second = tcuda.Stream(0), tcuda.Stream(OTHER)
        with first as entered, second, first:
            self.assertIs(entered, first)
            self.assertEqual(tcuda.current_stream(), first)
        self.assertEqual(tcuda.current_stream(0), tcuda.default_stream(0))
        self.assertEqual(tcuda.current_stream(OTHER), tcuda.default_stream(OTHER))
        self.assertEqual(tcuda.current_device(), 0)

    def test_threads_enter_a_stream_each_for_itself(self):
        stream, other = tcuda.Stream(0), tcuda.Stream(0)
        entered, leave, seen = threading.Event(), threading.Event(), []

        def work():
            tcuda.set_stream(other)
            with stream:
                entered.set()
                leave.wait()
            seen.append(tcuda.current_stream() == other)

        thread = threading.Thread(target=work)
        with stream:
            thread.start()
            entered.wait()
        leave.set()
        thread.join()
        self.assertEqual(seen, [True])
        self.assertEqual(tcuda.current_stream(), tcuda.default_stream())

    def test_set_stream_sets_the_device(self):
        stream = tcuda.Stream(OTHER)
        tcuda.set_stream(stream)
        self.assertEqual(tcuda.current_device(), OTHER)
        tcuda.set_stream(None)
        self.assertEqual(tcuda.current_stream(), stream)

    def test_current_stream_outlives_its_object(self):
        tcuda.set_stream(tcuda.Stream(0))
        gc.collect()
        self.assertNotEqual(tcuda.current_stream().cuda_stream, 0)
        self.assertTrue(tcuda.current_stream().query())

    def test_external_stream(self):
        native = tcuda.Stream(0)
        stream = tcuda.ExternalStream(native.cuda_stream)
        self.assertIsInstance(stream, tcuda.Stream)
        self.assertEqual(stream.cuda_stream, native.cuda_stream)
        self.assertEqual(stream, tcuda.get_stream_from_external(native.cuda_stream, 0))

    def test_current_external_stream_outlives_its_object(self):
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int)
        native = ctypes.c_void_p()
        create = kind(_core.backend_function("cuStreamCreateWithPriority"))
        tcuda.set_device(0)  # makes its context current
        self.assertEqual(create(native, 0, 0), 0)
        stream = tcuda.ExternalStream(native.value)
        ended = weakref.ref(stream)
        tcuda.set_stream(stream)
        del stream
        gc.collect()
        self.assertIsNotNone(ended())
        self.assertEqual(tcuda.current_stream().cuda_stream, native.value)
        tcuda.set_stream(tcuda.default_stream())
        gc.collect()
        self.assertIsNone(ended())

    def test_ends_with_its_object(self):
        stream = tcuda.Stream(0)
        handle = stream._handle
        del stream
        gc.collect()
        self.assertRaises(tcuda.CudaError, _core.stream_query, handle)

    def test_failed_constructor(self):
        self.assertRaises(tcuda.CudaError, tcuda.Stream, COUNT)
        gc.collect()

    def test_capturing(self):
        self.assertFalse(tcuda.is_current_stream_capturing())
        graph = _core.graph_create(0)
        self.addCleanup(_core.graph_destroy, graph)
        with tcuda.Stream(0):
            _core.graph_capture_begin(graph, None, None, _core.CAPTURE_GLOBAL)
            self.assertTrue(tcuda.is_current_stream_capturing())
            _core.graph_capture_end(graph)


class Events(TestCase):
    def test_is_created_when_it_is_recorded(self):
        event = tcuda.Event()
        self.assertIsNone(event.device)
        self.assertEqual((event.cuda_event, event.event_id), (0, 0))
        self.assertEqual(repr(event), "<tcuda.Event uninitialized>")
        self.assertTrue(event.query())
        event.synchronize()
        event.wait()
        event.record(tcuda.Stream(OTHER))
        self.assertEqual(event.device, tcuda.device(OTHER))
        self.assertEqual(repr(event), f"<tcuda.Event {event.cuda_event:#x}>")

    @two_devices
    def test_stays_on_its_device(self):
        event = tcuda.Stream(1).record_event()
        self.assertRaises(tcuda.CudaError, event.record, tcuda.Stream(0))

    def test_order(self):
        first, second = tcuda.Stream(0), tcuda.Stream(0)
        event = first.record_event()
        self.assertIs(first.record_event(event), event)
        second.wait_event(event)
        second.wait_stream(first)
        event.wait(second)
        second.synchronize()
        self.assertTrue(second.query() and event.query())

    def test_elapsed_time(self):
        start, end = tcuda.Event(enable_timing=True), tcuda.Event(enable_timing=True)
        with self.assertRaisesRegex(ValueError, "Both events must be recorded before"):
            start.elapsed_time(end)
        start.record()
        end.record()
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0.0)
        with self.assertRaisesRegex(ValueError, "argument 'enable_timing=True'"):
            start.elapsed_time(tcuda.Event())

    def test_handle_of_another_process(self):
        handle = tcuda.Event(interprocess=True).ipc_handle()
        self.assertEqual(len(handle), 64)
        with self.assertRaisesRegex(ValueError, "64 bytes"):
            tcuda.Event.from_ipc_handle(0, handle[:-1])
        self.assertRaises(tcuda.CudaError, tcuda.Event().ipc_handle)

    def test_ends_with_its_object(self):
        handle = tcuda.Event()._handle
        gc.collect()
        self.assertRaises(tcuda.CudaError, _core.event_query, handle)


if __name__ == "__main__":
    unittest.main()
