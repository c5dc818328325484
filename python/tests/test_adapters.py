"""Memory for other libraries: in the order of their streams, and by the functions for CuPy."""

import ctypes
import functools
import os
import subprocess
import sys
import threading
import unittest

import tcuda
from tcuda import _core, stream_order

MIB = 1 << 20
NON_BLOCKING = 1


def driver(name, *types):
    """A function of the driver that tcuda has opened."""
    tcuda.init()
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(_core.backend_function(name))


def with_queued_work(test):
    """Runs a test in another process, where queued work does not run at once."""
    @functools.wraps(test)
    def in_another_process(self):
        if "schedule=threads" in os.environ.get("TCUDA_SIM", ""):
            test(self)
            return
        child = subprocess.run(
            [sys.executable, "-m", "unittest", self.id()], cwd=os.path.dirname(__file__),
            env={**os.environ, "TCUDA_SIM": "devices=2,schedule=threads"}, timeout=60,
            capture_output=True, text=True)
        self.assertEqual(child.returncode, 0, child.stderr)

    return in_another_process


class NativeStream:
    """A stream of the driver, as another library has it."""

    def __init__(self):
        handle, context = ctypes.c_void_p(), ctypes.c_void_p()
        retain = driver("cuDevicePrimaryCtxRetain", ctypes.c_void_p, ctypes.c_int)
        push = driver("cuCtxPushCurrent", ctypes.c_void_p)
        create = driver("cuStreamCreateWithPriority", ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
        pop = driver("cuCtxPopCurrent", ctypes.c_void_p)
        outcomes = [retain(ctypes.byref(context), 0), push(context),
                    create(ctypes.byref(handle), NON_BLOCKING, 0), pop(ctypes.byref(context))]
        assert outcomes == [0, 0, 0, 0], outcomes
        self.handle = handle.value

    def __cuda_stream__(self):
        return 0, self.handle

    def end(self):
        assert driver("cuStreamDestroy", ctypes.c_void_p)(self.handle) == 0


class OtherVersion:
    def __cuda_stream__(self):
        return 1, 0


class StreamOrder(unittest.TestCase):
    def setUp(self):
        tcuda.empty_cache()
        self.reserved = tcuda.memory_reserved()

    def test_memory_outlives_its_stream(self):
        stream, other = NativeStream(), NativeStream()
        kept = stream_order.allocate(MIB, 0, stream)
        freed = stream_order.allocate(MIB, 0, stream)
        stream_order.free(freed, 0, stream)
        stream.end()
        stream_order.free(kept, 0, other)
        other.end()
        tcuda.empty_cache()
        self.assertEqual(tcuda.memory_reserved(), self.reserved)

    def test_a_stream_gets_its_memory_back(self):
        stream = NativeStream()
        first = stream_order.allocate(MIB, 0, stream)
        stream_order.free(first, 0, stream)
        second = stream_order.allocate(MIB, 0, stream)
        self.assertEqual(first, second)
        stream_order.free(second, 0, stream)
        stream.end()

    @with_queued_work
    def test_freed_on_a_stream_that_has_work(self):
        stream, other, gate = NativeStream(), NativeStream(), threading.Event()
        address = stream_order.allocate(4 * MIB, 0, stream)
        busy = tcuda.ExternalStream(other)
        busy.add_callback(gate.wait)
        try:
            stream_order.free(address, 0, other)
            second = stream_order.allocate(4 * MIB, 0, stream)
            self.assertNotEqual(second, address)
        finally:
            gate.set()
        busy.synchronize()
        self.assertEqual(stream_order.allocate(4 * MIB, 0, stream), address)
        stream_order.free(address, 0, stream)
        stream_order.free(second, 0, stream)

    def test_streams_of_tcuda(self):
        stream = tcuda.Stream()
        address = stream_order.allocate(MIB, 0, stream)
        stream_order.free(address, 0, tcuda.default_stream())
        self.assertEqual(tcuda.memory_allocated(), 0)

    def test_external_streams(self):
        stream = NativeStream()
        external = tcuda.ExternalStream(stream)
        self.assertEqual(external.cuda_stream, stream.handle)
        self.assertEqual(external, tcuda.get_stream_from_external(stream.handle))
        self.assertEqual(tcuda.ExternalStream(tcuda.Stream()).cuda_stream % 2, 0)
        with self.assertRaisesRegex(ValueError, "version 1"):
            tcuda.ExternalStream(OtherVersion())
        with self.assertRaisesRegex(TypeError, "'stream' is neither a cudaStream_t"):
            tcuda.ExternalStream("stream")
        del external
        stream.end()


class CupyAllocator(unittest.TestCase):
    """The C functions, called as CuPy calls them, with the GIL held."""

    def setUp(self):
        self.native, self.handles, self.asked, self.caches = 0, {}, [], False
        self.current_stream = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: self.native)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.name = b"intptr_t (void)"
        pointer = ctypes.cast(self.current_stream, ctypes.c_void_p)
        malloc, free = _core.cupy_functions(
            new(pointer, self.name, None), self.handle_of, self.fail_with)
        self.c_malloc = ctypes.PYFUNCTYPE(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc)
        self.free = ctypes.PYFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)

    def handle_of(self, native):
        self.asked.append(native)
        if native not in self.handles:
            return 0
        if self.caches:
            _core.cupy_cache(native, self.handles[native]._handle)
        return self.handles[native]._handle

    def malloc(self, _, size, device):
        return _core.cupy_malloc(lambda size: self.c_malloc(None, size, device), size)

    def fail_with(self, *arguments):
        raise KeyError(arguments)

    def test_default_stream(self):
        address = self.malloc(None, 1000, 0)
        self.assertEqual(tcuda.memory_allocated(), 1024)
        self.free(None, address, 0)
        self.assertEqual((tcuda.memory_allocated(), self.asked), (0, []))

    def test_each_stream_has_its_memory(self):
        streams = [NativeStream(), NativeStream()]
        self.handles = {stream.handle: tcuda.ExternalStream(stream) for stream in streams}
        found = []
        for stream in [*streams, *streams]:
            self.native = stream.handle
            found.append(self.malloc(None, MIB, 0))
            self.free(None, found[-1], 0)
        self.assertEqual(found[:2], found[2:])
        self.assertNotEqual(found[0], found[1])
        self.assertEqual(set(self.asked), {stream.handle for stream in streams})
        self.end(streams)

    @with_queued_work
    def test_freed_where_another_stream_uses_it(self):
        streams = [NativeStream(), NativeStream()]
        self.handles = {stream.handle: tcuda.ExternalStream(stream) for stream in streams}
        self.native = streams[0].handle
        address = self.malloc(None, 4 * MIB, 0)
        gate = threading.Event()
        self.native = streams[1].handle
        self.handles[self.native].add_callback(gate.wait)
        try:
            self.free(None, address, 0)
            self.native = streams[0].handle
            second = self.malloc(None, 4 * MIB, 0)
            self.assertNotEqual(second, address)
        finally:
            gate.set()
        self.handles[streams[1].handle].synchronize()
        self.assertEqual(self.malloc(None, 4 * MIB, 0), address)
        self.free(None, address, 0)
        self.free(None, second, 0)
        self.end(streams)

    def end(self, streams):
        self.native = 0
        _core.cupy_cache(0, None)
        for stream in streams:
            del self.handles[stream.handle]
            stream.end()
        tcuda.empty_cache()

    def test_a_stream_that_tcuda_need_not_know(self):
        stream = tcuda.Stream()
        self.native = stream.cuda_stream
        address = self.malloc(None, MIB, 0)
        self.free(None, address, 0)
        self.assertEqual(self.asked, [self.native, self.native])
        self.assertEqual(tcuda.memory_allocated(), 0)

    def test_cache(self):
        stream = NativeStream()
        self.native = stream.handle
        self.handles[self.native] = tcuda.ExternalStream(stream)
        self.free(None, self.malloc(None, 1000, 0), 0)
        self.assertEqual(self.asked, [self.native] * 2)
        self.caches = True
        for _ in range(2):
            self.free(None, self.malloc(None, 1000, 0), 0)
        self.assertEqual(self.asked, [self.native] * 3)
        _core.cupy_cache(0, None)
        self.free(None, self.malloc(None, 1000, 0), 0)
        self.assertEqual(self.asked, [self.native] * 4)
        self.end([stream])

    def test_out_of_memory(self):
        with self.assertRaises(KeyError) as caught:
            self.malloc(None, 1 << 50, 0)
        size, status, message, _ = caught.exception.args[0]
        self.assertEqual((size, status), (1 << 50, _core.STATUS_OUT_OF_MEMORY))
        self.assertIn("out of memory", message)
        self.free(None, self.malloc(None, 1000, 0), 0)

    def test_a_thread_has_its_own_failure(self):
        def fail(size):
            self.assertIsNone(self.c_malloc(None, size, 0))
            thread = threading.Thread(target=self.test_default_stream)
            thread.start()
            thread.join()

        with self.assertRaises(KeyError):
            _core.cupy_malloc(fail, 1 << 50)

    def test_failure_of_an_earlier_call(self):
        self.assertIsNone(self.c_malloc(None, 1 << 50, 0))
        self.test_default_stream()

    def test_no_stream(self):
        self.native = 77
        self.handles[77] = None  # has no handle
        with self.assertRaises(AttributeError):
            self.malloc(None, 1000, 0)

    def test_arguments(self):
        capsule = ctypes.pythonapi.PyCapsule_New(ctypes.c_void_p(1), b"int (void)", None)
        with self.assertRaises(ValueError):
            _core.cupy_functions(capsule, self.handle_of, self.fail_with)
        with self.assertRaises(TypeError):
            _core.cupy_functions(capsule)
        with self.assertRaises(TypeError):
            _core.cupy_cache("stream", None)
