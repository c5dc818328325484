"""The sanitizer: which accesses it reports, as exceptions, text and log."""

import contextlib
import io
import tempfile
import threading

import tcuda
from support import TestCase
from tcuda import _core
from tcuda.sanitizer import (
    AccessType, CUDASanitizerErrors, SynchronizationError, UnsynchronizedAccessError,
    cuda_sanitizer, enable_cuda_sanitizer, record_access)


class SanitizerTest(TestCase):
    def setUp(self):
        super().setUp()
        self.address = self.allocate(4096)
        self.first, self.second = tcuda.Stream(0), tcuda.Stream(0)
        tcuda.synchronize()
        self.printed = io.StringIO()
        redirection = contextlib.redirect_stderr(self.printed)
        redirection.__enter__()
        self.addCleanup(redirection.__exit__, None, None, None)

    def write(self, stream, offset=0, count=4):
        self.fill(self.address + offset, 1, count, stream)

    def read(self, stream):
        _core.copy(self.address + 2048, self.address, 16, stream._handle)


class Reports(SanitizerTest):
    def test_error_of_the_later_call(self):
        enable_cuda_sanitizer()
        self.write(self.first)
        with self.assertRaises(CUDASanitizerErrors) as raised:
            self.write(self.second, 8)
        (error,) = raised.exception.errors
        self.assertEqual(str(raised.exception), "data races: 1, see `errors`")
        self.assertIsInstance(error, UnsynchronizedAccessError)
        self.assertIsInstance(error, SynchronizationError)
        self.assertEqual((error.data_ptr, error.size), (self.address + 8, 8))
        current, previous = error.current_access, error.previous_access
        self.assertEqual((current.stream, previous.stream),
                         (self.second.stream_id, self.first.stream_id))
        self.assertEqual((current.type, previous.type), (AccessType.WRITE, AccessType.WRITE))
        self.assertEqual((current.operator, current.device, current.data_ptr, current.size),
                         ("tcuda_fill", 0, self.address + 8, 16))
        self.assertLess(previous.seq_num, current.seq_num)
        for access in (current, previous):
            self.assertIn("test_error_of_the_later_call", access.stack_trace)
            self.assertIn(__file__, access.stack_trace)
        self.first.synchronize()  # the error was raised once

    def test_text(self):
        enable_cuda_sanitizer()
        address = self.allocate(512, 0, self.first)
        self.fill(address, 1, 1, self.first)
        with self.assertRaises(CUDASanitizerErrors) as raised:
            self.fill(address, 2, 1, self.second)
        text = str(raised.exception.errors[0])
        self.assertEqual(self.printed.getvalue(), text + "\n")
        for part in (f"possible data race on 4 bytes at {address:#x}",
                     f"\nstream {self.second.stream_id}: tcuda_fill\nwriting to",
                     f"before it stream {self.first.stream_id}: tcuda_fill",
                     "allocation: ", "test_text", "must wait for"):
            self.assertIn(part, text)
        tcuda.synchronize()

    def test_order(self):
        enable_cuda_sanitizer()
        self.write(self.first)
        self.second.wait_stream(self.first)
        self.write(self.second)
        event = self.second.record_event()
        event.wait(self.first)
        self.read(self.first)
        record_access(self.address, 16, AccessType.READ, self.second)  # two reads
        self.first.synchronize()
        self.second.synchronize()
        self.write(self.first)
        tcuda.synchronize()
        self.write(self.second)
        self.write(self.first, 16)  # other bytes
        self.assertEqual(cuda_sanitizer.report_count(), 0)
        self.assertEqual(self.printed.getvalue(), "")

    def test_read_and_write(self):
        enable_cuda_sanitizer()
        self.read(self.first)
        with self.assertRaises(CUDASanitizerErrors) as raised:
            self.write(self.second)
        (error,) = raised.exception.errors
        self.assertEqual(error.previous_access.type, AccessType.READ)
        self.assertEqual(error.previous_access.operator, "tcuda_copy")
        self.assertIn("reading from", str(error))

    def test_kernels_of_others(self):
        enable_cuda_sanitizer()
        record_access(self.address, 64, AccessType.READ_WRITE, self.first, "my kernel")
        with self.assertRaises(CUDASanitizerErrors) as raised:
            record_access(self.address + 60, 8, AccessType.READ, self.second)
        (error,) = raised.exception.errors
        self.assertEqual(error.size, 4)
        self.assertEqual(error.previous_access.operator, "my kernel")
        self.assertEqual(error.current_access.operator, "kernel")
        self.assertIn("updating 64 bytes", str(error))

    def test_without_exceptions(self):
        enable_cuda_sanitizer(raise_errors=False)
        self.write(self.first)
        self.write(self.second)
        self.assertEqual(cuda_sanitizer.report_count(), 1)
        self.assertEqual(str(cuda_sanitizer.report(0)) + "\n", self.printed.getvalue())
        with self.assertRaises(ValueError):
            cuda_sanitizer.report(1)

    def test_options(self):
        cuda_sanitizer.enable(raise_errors=False, max_reports=1, stack_traces=False)
        self.assertTrue(cuda_sanitizer.enabled)
        for _ in range(3):
            self.write(self.first)
            self.write(self.second)
        self.assertGreater(cuda_sanitizer.report_count(), 1)
        self.assertEqual(self.printed.getvalue().count("possible data race"), 1)
        self.assertEqual(cuda_sanitizer.report(0).current_access.stack_trace, "")
        cuda_sanitizer.disable()
        self.assertFalse(cuda_sanitizer.enabled)
        self.assertEqual(cuda_sanitizer.report_count(), 0)
        self.write(self.first)
        self.write(self.second)
        self.assertEqual(self.printed.getvalue().count("possible data race"), 1)

    def test_log(self):
        lines = []
        _core.set_log_callback(_core.LOG_WARNING, lambda level, line: lines.append(line))
        self.addCleanup(_core.set_log_callback, _core.LOG_OFF, None)
        _core.sanitizer_enable(0, None, 0)
        self.write(self.first)
        self.write(self.second)
        found = [line for line in lines if "found a possible data race on 16 bytes" in line]
        self.assertEqual(len(found), 1)
        self.assertEqual(self.printed.getvalue(), "")


class Raising(SanitizerTest):
    """Calls that cannot raise leave the error to the next call of the thread that can."""

    def save(self):
        """Reads memory on the second stream, and returns how many bytes."""
        with tempfile.NamedTemporaryFile() as file, tcuda.stream(self.second):
            handle = _core.file_open(file.name, _core.FILE_WRITE | _core.FILE_STAGING)
            try:
                return _core.file_write(handle, self.address, 16, 0, None)
            finally:
                _core.file_close(handle)

    def test_call_with_a_result(self):
        enable_cuda_sanitizer()
        self.write(self.first)
        self.assertEqual(self.save(), 16)
        self.assertEqual(tcuda.current_stream(), tcuda.default_stream())
        with self.assertRaises(CUDASanitizerErrors) as raised:
            self.first.synchronize()
        self.assertEqual(raised.exception.errors[0].current_access.type, AccessType.READ)
        self.first.synchronize()  # the error was raised once

    def test_graph(self):
        enable_cuda_sanitizer()
        graph = tcuda.CUDAGraph()
        with tcuda.graph(graph, stream=self.second):
            self.write(self.second)
        tcuda.synchronize()
        self.write(self.first)
        with self.assertRaises(CUDASanitizerErrors) as raised, tcuda.stream(self.second):
            graph.replay()
        self.assertEqual(raised.exception.errors[0].current_access.operator,
                         "tcuda_graph_replay: tcuda_fill")

    def test_objects_that_end_raise_nothing(self):
        enable_cuda_sanitizer()
        self.write(self.first)
        other = tcuda.Stream(0)
        _core.sanitizer_access(self.first._handle, self.address, 4, AccessType.READ.value, None)
        with self.assertRaises(CUDASanitizerErrors):
            self.write(self.second)
        del other
        self.assertEqual(self.printed.getvalue().count("Exception ignored"), 0)

    def test_each_thread_has_its_own(self):
        enable_cuda_sanitizer()
        self.write(self.first)
        written, checked, raised = threading.Event(), threading.Event(), []

        def work():
            with tcuda.stream(self.second):
                handle = _core.file_open("/dev/null", _core.FILE_WRITE | _core.FILE_STAGING)
                try:
                    _core.file_write(handle, self.address, 16, 0, None)
                    written.set()
                    checked.wait()
                    self.first.synchronize()
                except CUDASanitizerErrors as error:
                    raised.append(error)
                finally:
                    _core.file_close(handle)

        thread = threading.Thread(target=work)
        thread.start()
        written.wait()
        try:
            self.first.synchronize()  # nothing is to be raised here
        finally:
            checked.set()
            thread.join()
        self.assertEqual(len(raised), 1)


if __name__ == "__main__":
    import unittest
    unittest.main()
